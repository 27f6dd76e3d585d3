"""Lower precision: int8 and fp16 files pass an acceptance of their own, and are certified and replayed like others."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from robust.export import export_ensemble
from robust.export import precision as precisions
from robust.export.acceptance import HeldOut, synthetic_images
from robust.export.precision import calibration_copies

from robustinfer import Predictor
from robustinfer.card import InputSpec
from robustinfer.cli.export import beside_float
from robustinfer.engines import onnx as onnx_engine
from robustinfer.errors import BatchError, ExportError

from ..robustinfer.engines.cuda import Cuda
from .conftest import make_ensemble

IMAGES = synthetic_images(InputSpec(1, 8, 8), 12)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same ensemble in three precisions; the labels are its own, so that some are certified."""
    folder, (ensemble, card) = tmp_path_factory.mktemp("precision"), make_ensemble(betas=(1.0, 0.4))
    plain = export_ensemble(ensemble, card, folder / "float32.onnx", samples=100)
    labels = Predictor.load(plain.path).scores(IMAGES.pixels).argmax(axis=1).astype(np.int64)
    options: dict[str, Any] = {
        "calibration": IMAGES,
        "held_out": HeldOut(IMAGES.source, IMAGES.pixels, labels),
        "samples": 100,
    }
    found = {"float32": plain}
    for precision in ("int8", "fp16"):
        path = folder / f"{precision}.onnx"
        found[precision] = export_ensemble(ensemble, card, path, precision=precision, **options)
    return found


def test_int8_is_static_per_channel_and_smaller_in_its_weights(exported: dict[str, Any]) -> None:
    model = onnx.load(exported["int8"].path)
    operators = {node.op_type for node in model.graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= operators
    assert not any("Dynamic" in operator for operator in operators)
    weights = [tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.INT8]
    assert any(len(tensor.dims) == 4 for tensor in weights)
    scales = {tensor.name: tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT}
    assert any(len(tensor.dims) == 1 and tensor.dims[0] > 1 for tensor in scales.values())


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_a_card_says_the_precision_and_what_it_costs(exported: dict[str, Any], precision: str) -> None:
    parity = Predictor.load(exported[precision].path).card.parity
    assert parity["precision"] == precision
    assert parity["samples"] == 100
    assert parity["flips"] <= 10
    assert ("calibration" in parity) == (precision == "int8")
    measured = parity["held_out"]
    assert measured["count"] == len(IMAGES.pixels)
    for name in ("float32", "this file"):
        assert 0 < measured[name]["certified_accuracy"] <= 1
        assert measured[name]["acr"] > 0
    assert "precision" not in exported["float32"].card.parity


def test_the_command_rounds_neither_a_mean_radius_nor_an_accuracy_up(exported: dict[str, Any]) -> None:
    card = exported["int8"].card
    measured = card.parity["held_out"] | {
        "float32": {"certified_accuracy": 0.9, "acr": 0.4567},
        "this file": {"certified_accuracy": 0.8999, "acr": 0.4449},
    }
    words = beside_float(dataclasses.replace(card, parity=card.parity | {"held_out": measured}))
    assert "certified accuracy 89.9 % and ACR 0.444 as in int8" in words
    assert "90.0 % and 0.456 as the plain file" in words


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_certificates_of_a_lower_precision_are_replayed(exported: dict[str, Any], precision: str) -> None:
    predictor = Predictor.load(exported[precision].path)
    certificate = predictor.certify(IMAGES.pixels[3], n=300, seed=1)
    assert Predictor.load(exported[precision].path, batch=7).verify(certificate, IMAGES.pixels[3]).ok
    assert certificate.model.digest != Predictor.load(exported["float32"].path).digest


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("a.pt", {"precision": "int8", "calibration": IMAGES}, "is an .onnx file without a sampler; found a.pt"),
        ("a.onnx", {"precision": "int8", "sampler": True}, "found a.onnx with one"),
        ("a.onnx", {"precision": "int8"}, "int8 is calibrated on noisy training images"),
        ("a.onnx", {"precision": "int4"}, "float32, int8, fp16; found 'int4'"),
    ],
)
def test_what_has_no_lower_precision_is_refused(
    tmp_path: Path, name: str, options: dict[str, Any], sentence: str
) -> None:
    ensemble, card = make_ensemble()
    with pytest.raises(ExportError, match=sentence):
        export_ensemble(ensemble, card, tmp_path / name, **options)
    assert not list(tmp_path.iterdir())


def test_ranges_that_do_not_suit_the_images_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrated on values fifty times too small, nearly everything saturates: the votes on noise show it."""

    def faint(*given: Any) -> tuple[list[precisions.Pixels], dict[str, Any]]:
        copies, facts = calibration_copies(*given)
        return [batch / np.float32(50) for batch in copies], facts

    monkeypatch.setattr(precisions, "calibration_copies", faint)
    ensemble, card = make_ensemble(betas=(1.0, 0.4))
    with pytest.raises(ExportError, match=r"of 100 votes on noise differ .* clearly more than 10%"):
        export_ensemble(ensemble, card, tmp_path / "a.onnx", precision="int8", calibration=IMAGES, samples=100)
    assert not list(tmp_path.iterdir())


def test_scores_that_half_precision_cannot_hold_are_refused(tmp_path: Path) -> None:
    ensemble, card = make_ensemble(betas=(1e7, 4e6))
    with pytest.raises(ExportError, match=r"votes on noise differ .* scores too large, for its precision"):
        export_ensemble(ensemble, card, tmp_path / "a.onnx", precision="fp16", samples=100)
    assert not list(tmp_path.iterdir())


def test_half_precision_is_asked_of_the_gpu_that_was_named(
    exported: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = Cuda(works=True)
    monkeypatch.setattr(onnx_engine, "runtime", lambda: cuda)
    predictor = Predictor.load(exported["fp16"].path, device="cuda")
    assert cuda.asked == [("CUDAExecutionProvider", {"device_id": 0, "use_tf32": 0})]
    assert predictor.scores(IMAGES.pixels).dtype == np.float32


def test_dynamic_quantisation_is_refused(exported: dict[str, Any], tmp_path: Path) -> None:
    """By the name of its operator, however small the differences; alone in its batch an image has no neighbours."""
    from onnxruntime.quantization import quantize_dynamic

    path = tmp_path / "dynamic.onnx"
    quantize_dynamic(exported["float32"].path, path)
    model = onnx.load(path)
    assert any(node.op_type == "DynamicQuantizeLinear" for node in model.graph.node)
    onnx.helper.set_model_props(
        model, {entry.key: entry.value for entry in onnx.load(exported["float32"].path).metadata_props}
    )
    onnx.save(model, path)
    with pytest.raises(BatchError, match="quantised dynamically: it takes its scales from the batch"):
        Predictor.load(path)
    assert Predictor.load(path, batch=1).scores(IMAGES.pixels).shape == (12, 4)


@pytest.mark.parametrize(("precision", "known"), [("float32", True), ("int8", False)])
def test_whole_numbers_are_not_judged_by_the_limit_of_floats(
    exported: dict[str, Any], precision: str, known: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    from robustinfer.cli.main import app

    path = str(exported[precision].path)
    app(["bench", path, "--batches", "4", "--seconds", "0.01", "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert (found["limit"] is not None) == known
