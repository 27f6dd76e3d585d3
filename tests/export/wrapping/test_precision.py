"""Wrapped files of lower precision: calibrated on some of the user's images, and measured on the others."""

import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto

from robustinfer import Predictor

from ...commands import Robust
from .test_refusals import refused
from .test_wrapper import CLASSES, IMAGES, WEIGHTS, Small, graph, photographs, wrapped


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photographs(tmp_path_factory.mktemp("wrapped") / "photographs")


@pytest.mark.parametrize(("precision", "operator"), [("int8", "DequantizeLinear"), ("fp16", "Cast")])
@pytest.mark.parametrize("kind", ["graph", "module"])
def test_a_lower_precision_is_accepted_measured_and_replayed(
    tmp_path: Path, folder: Path, precision: str, operator: str, kind: str
) -> None:
    source: Any = graph(tmp_path / "foreign.onnx", batch=1, flatten="constant") if kind == "graph" else Small()
    if kind == "module":
        source.head.weight.data.copy_(torch.from_numpy(WEIGHTS.T))
    options: dict[str, Any] = {"images": folder, "sigma": 0.25, "precision": precision, "samples": 80}
    options |= {} if kind == "graph" else {"size": (4, 6)}
    result, predictor = wrapped(source, tmp_path, **options)
    parity = result.card.parity
    assert parity["precision"] == precision
    assert parity["flips"] <= (8 if precision == "int8" else 1)
    assert ("reference" in parity) == (kind == "graph")
    # Every other one of the eight photographs is for the calibration, the others are measured.
    assert parity.get("calibration", {}).get("count") == (4 if precision == "int8" else None)
    measured = parity["held_out"]
    assert (measured["count"], measured["images"]) == (4, "photographs")
    assert measured["float32"]["acr"] > 0
    assert measured["this file"]["acr"] == pytest.approx(measured["float32"]["acr"], rel=0.2)
    assert any(node.op_type == operator for node in onnx.load(result.path).graph.node)
    certificate = predictor.certify(IMAGES[0], n=200, seed=1)
    assert Predictor.load(result.path, batch=3).verify(certificate, IMAGES[0]).ok


def test_images_without_labels_calibrate_and_are_not_measured(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "mixed").mkdir()
    for number, file in enumerate(sorted(folder.glob("*/0.png"))[:2]):
        shutil.copy(file, tmp_path / "mixed" / f"{number}.png")
    options: dict[str, Any] = {"images": tmp_path / "mixed", "precision": "int8", "sigma": 0.25}
    result, _ = wrapped(graph(tmp_path / "foreign.onnx"), tmp_path, **options)
    assert result.card.parity["calibration"]["count"] == 1
    assert "held_out" not in result.card.parity


def test_what_has_no_lower_precision_is_refused(tmp_path: Path, folder: Path) -> None:
    source = graph(tmp_path / "foreign.onnx")
    refused(tmp_path, "A precision is one of float32, int8, fp16; found 'int4'", source, precision="int4")
    refused(tmp_path, "int8 is calibrated on noisy training images.*--images", source, precision="int8")
    half = graph(tmp_path / "half.onnx", kind=TensorProto.FLOAT16)
    refused(tmp_path, "half.onnx is not a float32 graph: it computes in float16", half, precision="fp16")
    done, _ = wrapped(source, tmp_path, images=folder, precision="int8")
    theirs = onnx.load(done.path)
    del theirs.metadata_props[:]  # somebody else's file has no card
    onnx.save(theirs, tmp_path / "theirs.onnx")
    options: dict[str, Any] = {"precision": "int8", "images": folder}
    refused(tmp_path, "has DequantizeLinear nodes. Wrap it without", tmp_path / "theirs.onnx", **options)


def test_the_command_says_what_was_certified_beside_the_float_file(
    tmp_path: Path, folder: Path, robust: Robust, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    graph(tmp_path / "foreign.onnx")
    (tmp_path / "labels.txt").write_text("\n".join(CLASSES) + "\n")
    words = ["wrap", "foreign.onnx", "--classes", "labels.txt", "--mean", "0.5,0.4,0.3", "--std", "0.2,0.25,0.3"]
    words += ["--samples", "20", "--sigma", "0.25", "--images", str(folder), "--precision", "int8"]
    code, out, err = robust(*words, "--out", "m.onnx")
    assert code == 0, err
    assert "in int8," in out
    assert "(4 held-out images)" in out
    code, _, err = robust(*words, "--out", "m.pt")
    assert code == 1
    assert "A file of precision int8 is an .onnx file; found m.pt." in err
