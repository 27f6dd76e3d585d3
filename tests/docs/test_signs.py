"""The traffic signs in examples/signs: the files belong together, and say what their page says."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from robust.serve.page import material_beside

from robustinfer import Certificate, Predictor
from robustinfer.attacked import read_attacked
from robustinfer.baseline import Baseline
from robustinfer.certificate_file import read_certificates
from robustinfer.data import load_images
from robustinfer.files import sha256
from robustinfer.images import read_image
from robustinfer.smoothing.bounds import format_radius
from robustinfer.summary import summarize

from .conftest import ROOT

FOLDER = ROOT / "examples" / "signs"
MODEL = FOLDER / "signs.onnx"
DATA = Path(os.environ.get("ROBUST_DATA", "data")) / "gtsrb-32.npz"


@pytest.fixture(scope="module")
def signs() -> Predictor:
    return Predictor.load(MODEL, device="cpu", threads=1)


def drawings() -> dict[str, Certificate]:
    """The certificates of the drawings, by their files."""
    lines = map(json.loads, (FOLDER / "drawings.jsonl").read_text().splitlines())
    return {line.pop("file"): Certificate.from_json(line) for line in lines}


def test_the_card_says_what_was_trained(signs: Predictor) -> None:
    card = signs.card
    # The numbers of the benchmark's own classes.
    known = {0: "speed limit 20", 12: "priority road", 13: "yield", 14: "stop", 17: "no entry", 38: "keep right"}
    assert len(card.classes) == 43
    assert {number: card.classes[number] for number in known} == known
    assert (card.name, card.sigma, card.license) == ("signs", 0.12, "Apache-2.0")
    assert (card.input.shape, card.input.resize) == ((3, 32, 32), "bilinear")
    assert card.baseline is not None
    assert Baseline.from_json(card.baseline).images > 100
    assert "/" not in json.dumps(card.training["data"])
    assert MODEL.stat().st_size < 3_000_000


def test_the_drawings_are_those_of_the_script_and_certified_as_what_they_show(
    signs: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import draw  # type: ignore[import-not-found]

    certificates = drawings()
    assert {f"images/{path.name}" for path in (FOLDER / "images").iterdir()} == set(certificates)
    assert len(certificates) >= 12
    for name in draw.SIGNS:
        if (file := f"images/{draw.file_name(name)}") in certificates:
            kept = read_image(FOLDER / file, signs.card.input).astype(int)
            drawn = np.moveaxis(np.asarray(draw.draw(name)), 2, 0)
            assert np.abs(kept - drawn).mean() < 2  # another Pillow may round otherwise
            assert (certificates[file].class_name, certificates[file].model.digest) == (name, signs.digest)


def same(signs: Predictor, certificate: Certificate, image: Any) -> None:
    answer = signs.verify(certificate, image)
    assert answer.same_model
    assert answer.label == certificate.label, answer.reason
    assert answer.flips <= 10, "another processor may round near-ties the other way"
    assert answer.radius == pytest.approx(certificate.radius, abs=0.02)


def test_a_stop_sign_is_certified_and_certificates_of_drawings_replay(signs: Predictor) -> None:
    image = read_image(FOLDER / "images" / "stop.png", signs.card.input)
    assert signs.certify(image, n=200, seed=1).class_name == "stop"
    certificates = drawings()
    for file in ("images/stop.png", min(certificates, key=lambda file: certificates[file].radius)):
        same(signs, certificates[file], read_image(FOLDER / file, signs.card.input))


def test_the_page_shows_each_drawing_once_with_what_fools_the_ordinary_network(signs: Predictor) -> None:
    material = material_beside(MODEL, signs.card)
    assert sorted(f"images/{example.name}.png" for example in material.examples) == sorted(drawings())
    ordinary = material.ordinary
    assert ordinary is not None
    examples = read_attacked(FOLDER / "attacked.npz").examples
    changed = np.stack([example.changed for example in examples])
    truth = [example.truth for example in examples]
    assert list(ordinary.scores(np.stack([example.original for example in examples])).argmax(axis=1)) == truth
    assert (ordinary.scores(changed).argmax(axis=1) != truth).all()
    assert all(example.distance < example.radius and example.answered == example.truth for example in examples)


def test_the_certificates_of_test_images_give_the_figures_of_the_page(signs: Predictor) -> None:
    header, entries = read_certificates(FOLDER / "certificates.jsonl")
    assert header.model["digest"] == signs.digest == sha256(MODEL)
    summary = summarize(header, entries, radii=[0.0, 0.1, 0.2])
    shown = re.search(r"\| ([\d.]+) % \| ([\d.]+) % \| ([\d.]+) % \| ([\d.]+) \|", (FOLDER / "README.md").read_text())
    assert shown is not None
    assert shown.groups() == (
        *(f"{100 * row.accuracy:.1f}" for row in summary.accuracies),
        format_radius(summary.acr),
    )
    assert summary.images == 500


@pytest.mark.skipif(not DATA.is_file(), reason="needs gtsrb-32.npz in the folder that ROBUST_DATA names")
def test_one_of_them_replays(signs: Predictor) -> None:
    _, entries = read_certificates(FOLDER / "certificates.jsonl")
    entry = min((one for one in entries if one.correct_radius > 0.05), key=lambda one: one.correct_radius)
    same(signs, entry.certificate, load_images(f"npz:{DATA}", signs.card).read(entry.index))
