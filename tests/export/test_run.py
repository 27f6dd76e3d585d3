"""A run folder becomes a file whose card says what the run says; the command line does the same."""

import json
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
import torch
from robust.export import export_run
from robust.export.acceptance import _round_up
from robust.train.runs.run import Run
from typer.testing import CliRunner

from robustinfer import Predictor
from robustinfer.card import Card, card_schema
from robustinfer.cli.main import app
from robustinfer.errors import ExportError
from robustinfer.smoothing.bounds import clopper_pearson_upper

from .conftest import make_run


def test_the_card_says_what_the_run_says(run: Run, tmp_path: Path) -> None:
    (run.path / "evaluation.json").write_text(json.dumps({"clean": {"accuracy": 0.9}}))
    exported = export_run(run, tmp_path / "model.pt", name="digits", version="3", license="CC-BY-4.0", samples=50)
    card = Predictor.load(exported.path).card
    assert card == exported.card
    jsonschema.validate(json.loads(card.dumps()), card_schema())
    assert (card.name, card.version, card.license) == ("digits", "3", "CC-BY-4.0")
    assert card.classes == run.classes
    assert card.input == run.input
    assert card.sigma == 0.25
    assert card.threat is not None
    assert (card.threat.norm, card.threat.delta) == ("l2", 0.5)
    assert [(member.architecture, member.beta, member.stage) for member in card.members] == [
        ("cnn", 1.0, 1),
        ("cnn", 0.5, 2),
    ]
    assert card.training["recipe"] == run.recipe.to_json()
    assert card.training["data_digest"] == "sha256:0"
    assert card.training["versions"] == {"torch": str(torch.__version__)}
    assert card.evaluation == {"clean": {"accuracy": 0.9}}


def test_parity_figures(run: Run, tmp_path: Path) -> None:
    parity = export_run(run, tmp_path / "model.pt", samples=50).card.parity
    assert parity["images"] == "digits:test"
    assert parity["samples"] == 50
    assert parity["clean"] == 8
    assert parity["sigma"] == 0.25
    assert 0 <= parity["relative_difference"] < 1e-5
    assert parity["flips"] <= 1
    assert parity["zeta"] == pytest.approx(clopper_pearson_upper(parity["flips"], 50, 0.001), rel=1e-3)
    assert parity["zeta"] >= clopper_pearson_upper(parity["flips"], 50, 0.001)


def test_a_prefix_has_the_weights_of_its_time(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    exported = export_run(run, tmp_path / "first.pt", stages=1, samples=20)
    assert [member.stage for member in exported.card.members] == [1]
    images = np.random.default_rng(0).random((3, 1, 8, 8), dtype=np.float32)
    with torch.inference_mode():
        expected = run.ensemble(1)(torch.from_numpy(images)).numpy()
    assert np.allclose(Predictor.load(exported.path).scores(images), expected, atol=1e-5)


def test_a_member_that_was_dropped_is_not_in_the_file(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    document = json.loads((run.path / "stage-02.json").read_text())
    (run.path / "stage-02.json").write_text(json.dumps(document | {"betas": [0.0, 0.5]}))
    exported = export_run(run.path, tmp_path / "model.pt", samples=20)
    assert [(member.stage, member.beta) for member in exported.card.members] == [(2, 0.5)]


def test_paths_of_data_stay_out_of_the_card(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", data=f"npz:{tmp_path}/secret/cats.npz")
    exported = export_run(run, tmp_path / "model.pt", samples=20)
    assert exported.card.training["recipe"]["data"] == "npz:cats.npz"
    assert exported.card.parity["images"] == "synthetic"
    assert str(tmp_path) not in exported.card.dumps()


def test_a_model_that_was_not_trained_for_noise(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", smoothing="none", sigma=0.0, norm="linf", delta=0.1)
    card = export_run(run, tmp_path / "model.pt", samples=20).card
    assert card.sigma is None
    assert card.threat is not None
    with pytest.raises(ExportError, match="needs the sigma"):
        export_run(run, tmp_path / "sampler.pt", sampler=True)


def test_standard_keys_of_onnx(run: Run, tmp_path: Path) -> None:
    export_run(run, tmp_path / "model.onnx", version="7", license="MIT", author="A. Author", samples=20)
    model = onnx.load(tmp_path / "model.onnx")
    entries = {entry.key: entry.value for entry in model.metadata_props}
    assert Card.loads(entries.pop("robustinfer.card")).classes == run.classes
    assert entries == {
        "model_author": "A. Author",
        "model_license": "MIT",
        "Image.BitmapPixelFormat": "Gray8",
        "Image.ColorSpaceGamma": "SRGB",
        "Image.NominalPixelRange": "Normalized_0_1",
    }
    assert (model.model_version, model.producer_name) == (7, "robustinfer")


@pytest.mark.parametrize(("value", "digits", "expected"), [(0.0, 1, 0.0), (1.1e-7, 1, 2e-7), (2e-7, 1, 2e-7)])
def test_differences_are_rounded_up(value: float, digits: int, expected: float) -> None:
    assert _round_up(value, digits) == expected
    assert _round_up(9.5, 1) == 10.0
    assert _round_up(0.0068839, 4) == 0.006884


def test_command_line(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "model.pt"
    result = CliRunner().invoke(app, ["export", str(run.path), "--out", str(target), "--samples", "20", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["digest"] == Predictor.load(target).digest
    assert document["bytes"] == target.stat().st_size
    result = CliRunner().invoke(app, ["export", str(run.path), "--out", str(target), "--samples", "20", "--sampler"])
    assert "zeta" in result.stdout
    assert Predictor.load(target).card.sampler == ("8-bit", "16-bit")
