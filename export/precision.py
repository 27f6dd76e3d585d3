"""Precision: the graph of an ONNX file in 8-bit integers, or in half precision for GPUs; smaller, and often faster.

Such a file is another base classifier, and is certified as such: nothing that was proven of the float file is taken
over. So its acceptance is its own. Scores may differ; votes on replayed noise may flip, up to a share; and its
certified accuracy on held-out images is measured beside that of the float file, and stands in the card.
"""

import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import onnx

from robustinfer import Predictor
from robustinfer.card import Card
from robustinfer.errors import ExportError
from robustinfer.smoothing.bounds import round_radius_down

from .acceptance import NOISE_SEED, HeldOut, Images, noisy_copies
from .onnx_file import with_card

__all__ = [
    "FLIPS",
    "Precision",
    "calibration_copies",
    "certified_beside",
    "check_calibration",
    "check_precision",
    "integers",
    "lower",
]

Precision = Literal["float32", "int8", "fp16"]
Pixels = npt.NDArray[np.float32]
Progress = Callable[[float], None]

FLIPS = {"float32": 0.01, "int8": 0.1, "fp16": 0.01}
"""Share of votes on noise that may flip against the ensemble."""

_SIGMA = 0.25  # for a model that was not trained for noise, as in acceptance
_COPIES = 4  # noisy copies per calibration image
_HELD_OUT_N, _ALPHA = 500, 0.001


def lower(
    precision: Precision,
    build: Callable[[Card], bytes],
    card: Card,
    *,
    calibration: Images | None,
    held_out: HeldOut | None,
    progress: Progress = lambda _: None,
) -> tuple[Callable[[Card], bytes], dict[str, Any]]:
    """The file in a lower precision, as a function of its card, and the figures that go into the card.

    int8 is static: its ranges are taken from noisy copies of the calibration images, which are what the graph will see,
    once and for all. (Dynamic quantisation takes them from each batch, so that scores would depend on neighbours.)
    """
    model = onnx.load_from_string(build(card))
    facts: dict[str, Any] = {"precision": precision}
    batches: list[Pixels] = []
    if precision == "int8":
        batches, facts["calibration"] = calibration_copies(calibration, card)
    try:
        graph = integers(model, batches) if precision == "int8" else _half(model)
    except Exception as error:  # the tools raise whatever a graph of somebody else's does to them
        sentence = next(iter(str(error).splitlines()), type(error).__name__)
        raise ExportError(f"onnxruntime cannot write this graph as {precision}: {sentence}") from error
    lowered: Callable[[Card], bytes] = lambda final: with_card(graph, final)  # noqa: E731
    if held_out is not None and card.sigma is not None:
        facts["held_out"] = certified_beside(build(card), lowered(card), held_out, progress=progress)
    return lowered, facts


def check_precision(precision: str) -> None:
    """Refuse a precision that there is not."""
    if precision not in get_args(Precision):
        raise ExportError(f"A precision is one of {', '.join(get_args(Precision))}; found {precision!r}.")


def check_calibration(precision: str, calibration: object) -> None:
    """Refuse int8 without anything to calibrate it on."""
    if precision == "int8" and calibration is None:
        raise ExportError(
            "int8 is calibrated on noisy training images, and the data of this model is not available: name its "
            "folder with --data (a run) or --images (a wrapped model)."
        )


def calibration_copies(calibration: Images | None, card: Card) -> tuple[list[Pixels], dict[str, Any]]:
    """Noisy copies of the calibration images, in batches, and what the card says about them."""
    check_calibration("int8", calibration)
    assert calibration is not None
    copies = noisy_copies(calibration, card.sigma or _SIGMA, _COPIES * len(calibration.pixels))
    facts = {"images": calibration.source, "count": len(calibration.pixels), "copies": _COPIES}
    return [noisy for _, _, noisy in copies], facts


def integers(model: onnx.ModelProto, batches: Iterable[Pixels]) -> onnx.ModelProto:
    """A graph of one input in 8-bit integers, with the ranges that its values have on these batches."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    name = model.graph.input[0].name

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._batches: Iterator[dict[str, Any]] = ({name: batch} for batch in batches)

        def get_next(self) -> dict[str, Any] | None:
            return next(self._batches, None)

    with tempfile.TemporaryDirectory() as folder:
        source, prepared, target = (Path(folder) / part for part in ("float.onnx", "prepared.onnx", "int8.onnx"))
        onnx.save(model, str(source))
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(target),
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            # Seven bits of weights: products of two bytes do not saturate where a processor has no VNNI instructions,
            # so the file has the same scores everywhere.
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        found = onnx.load(str(target))
    del found.graph.value_info[:]
    return found


def _half(model: onnx.ModelProto) -> onnx.ModelProto:
    """Half precision inside; pixels and scores stay float32, so that the file is used like any other."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    found: onnx.ModelProto = convert_float_to_float16(model, keep_io_types=True, disable_shape_infer=True)
    del found.graph.value_info[:]
    return found


def certified_beside(
    plain: bytes,
    other: bytes,
    held_out: HeldOut,
    *,
    suffix: str = ".onnx",
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Certified accuracy at radius 0 and average certified radius of two files, on the same images and noise.

    `plain` is the file of the float32 ensemble, `other` the one that is being written.
    """
    found: dict[str, Any] = {"images": held_out.source, "count": len(held_out.labels), "n": _HELD_OUT_N}
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (("float32", plain), ("this file", other)):
            path = Path(folder) / f"model{suffix}"
            path.write_bytes(content)
            loaded = Predictor.load(path, device="cpu")
            # Whoever wraps a network is told about its noise once, not by every predictor on the way.
            predictor = Predictor(loaded.engine, dataclasses.replace(loaded.card, noise_trained=True))
            settings: dict[str, Any] = {"n": _HELD_OUT_N, "alpha": _ALPHA, "seed": NOISE_SEED, "progress": progress}
            certified = predictor.certify_many(held_out.pixels, **settings)
            pairs = zip(held_out.labels, certified, strict=True)
            radii = [one.radius if one.label == int(label) else 0.0 for label, one in pairs]
            found[name] = {
                "certified_accuracy": float(np.mean(np.array(radii) > 0)),
                "acr": round_radius_down(float(np.mean(radii))),
            }
    return found
