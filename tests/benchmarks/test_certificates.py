"""The certificates behind a result: they belong to the model file beside them, give its figures, and replay."""

import json
import os
import re
from pathlib import Path

import pytest
from robust.train import Recipe

from robustinfer import Predictor
from robustinfer.certificate_file import read_certificates
from robustinfer.data import load_images
from robustinfer.files import sha256
from robustinfer.summary import summarize

FOLDER = Path(__file__).parents[2] / "benchmarks"
DATA = os.environ.get("ROBUST_DATA", "data")
CERTIFICATES = FOLDER / "certificates" / "l2_long-0.5.jsonl"
MODEL = CERTIFICATES.with_suffix(".onnx")
ROWS = json.loads((FOLDER / "results" / "l2_long.json").read_text())["rows"]


@pytest.mark.parametrize(
    ("name", "row", "n"),
    [("l2_long-0.5", "0.5/0/boosted-equal", "n=100000"), ("cifar10_fast-0.25", "0.25/0/single-36", "n=10000")],
)
def test_they_are_of_the_file_beside_them_and_give_the_figure_of_the_results(name: str, row: str, n: str) -> None:
    certificates = FOLDER / "certificates" / f"{name}.jsonl"
    header, entries = read_certificates(certificates)
    record = name.rpartition("-")[0]
    result = json.loads((FOLDER / "results" / f"{record}.json").read_text())["rows"][row][n]
    assert header.model["digest"] == sha256(certificates.with_suffix(".onnx"))
    if "certificates" in result:
        assert result["certificates"] == {"model_sha256": header.model["digest"], "file_sha256": sha256(certificates)}
    summary = summarize(header, entries, radii=[0.0])
    assert summary.images == result["images"]
    assert summary.acr == pytest.approx(result["acr"], abs=1e-12)
    assert [entry.correct_radius for entry in entries] == result["radii"]


@pytest.mark.parametrize(
    ("recipe", "record", "row"),
    [
        ("mnist-l2-long", "l2_long", "0.5/0/boosted-equal"),
        ("cifar10-l2", "cifar10_fast", "0.25/0/single-36"),
        ("cifar10-linf", "cifar10_linf", "0.031373/0/single-8"),
    ],
)
def test_recipes_train_what_was_measured(recipe: str, record: str, row: str) -> None:
    """All but the arithmetic, in which processors differ, and the digits that a record's radius is written with."""
    rows = json.loads((FOLDER / "results" / f"{record}.json").read_text())["rows"]
    recorded = Recipe.from_json(rows[row]["recipe"])
    ours = Recipe.load(recipe)
    assert ours.delta == pytest.approx(recorded.delta, abs=1e-6)
    apart = {"name": "", "description": "", "precision": "fp32", "delta": 0.0}
    assert ours.replace(**apart) == recorded.replace(**apart)


@pytest.mark.skipif(not (Path(DATA) / "MNIST").is_dir(), reason="needs MNIST in the folder that ROBUST_DATA names")
def test_one_of_them_replays() -> None:
    _, entries = read_certificates(CERTIFICATES)
    # A small radius has many votes for other classes, where replaying could go wrong.
    entry = min((one for one in entries if one.correct_radius > 0.1), key=lambda one: one.correct_radius)
    predictor = Predictor.load(MODEL, device="cpu")
    image = load_images(f"mnist:{DATA}", predictor.card).read(entry.index)
    answer = predictor.verify(entry.certificate, image)
    assert answer.same_model
    assert answer.label == entry.certificate.label, answer.reason
    assert answer.flips <= 10, "another processor may round near-ties the other way"
    assert answer.radius == pytest.approx(entry.certificate.radius, abs=0.01)


def test_the_record_has_the_digests_of_the_files_that_only_the_history_has() -> None:
    for sigma in ("0.25", "1"):
        result = ROWS[f"{sigma}/0/boosted-equal"]["n=100000"]
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", digest) for digest in result["certificates"].values())
        assert sum(result["radii"]) / len(result["radii"]) == pytest.approx(result["acr"], abs=1e-12)
