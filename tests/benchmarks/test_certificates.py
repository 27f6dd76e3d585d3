"""The certificates behind the results: they belong to the model files beside them, give the figures, and replay."""

import json
import os
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
FILES = sorted((FOLDER / "certificates").glob("*.jsonl"))


def test_there_are_certificates_for_three_sigmas() -> None:
    assert [path.stem for path in FILES] == ["l2_long-0.25", "l2_long-0.5", "l2_long-1"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_they_are_of_the_file_beside_them_and_give_the_figure_of_the_results(path: Path) -> None:
    header, entries = read_certificates(path)
    assert header.model["digest"] == sha256(path.with_suffix(".onnx"))
    rows = json.loads((FOLDER / "results" / "l2_long.json").read_text())["rows"]
    result = rows[f"{path.stem.removeprefix('l2_long-')}/0/boosted-equal"]["n=100000"]
    summary = summarize(header, entries, radii=[0.0])
    assert (summary.images, summary.acr) == (result["images"], pytest.approx(result["acr"], abs=1e-12))
    assert [entry.correct_radius for entry in entries] == result["radii"]


def test_the_long_recipe_trains_what_was_certified() -> None:
    rows = json.loads((FOLDER / "results" / "l2_long.json").read_text())["rows"]
    unnamed = {"name": "", "description": ""}
    recorded = Recipe.from_json(rows["0.5/0/boosted-equal"]["recipe"])
    assert Recipe.load("mnist-l2-long").replace(**unnamed) == recorded.replace(**unnamed)


@pytest.mark.skipif(not (Path(DATA) / "MNIST").is_dir(), reason="needs MNIST in the folder that ROBUST_DATA names")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_one_of_them_replays(path: Path) -> None:
    _, entries = read_certificates(path)
    # A small radius has many votes for other classes, where replaying could go wrong.
    entry = min((one for one in entries if one.correct_radius > 0.1), key=lambda one: one.correct_radius)
    predictor = Predictor.load(path.with_suffix(".onnx"), device="cpu")
    image = load_images(f"mnist:{DATA}", predictor.card).read(entry.index)
    answer = predictor.verify(entry.certificate, image)
    assert answer.same_model
    assert answer.label == entry.certificate.label, answer.reason
    assert answer.flips <= 10, "another processor may round near-ties the other way"
    assert answer.radius == pytest.approx(entry.certificate.radius, abs=0.01)
