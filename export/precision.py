"""Precision: the graph of an ONNX file in 8-bit integers, or in half precision for GPUs; smaller, and often faster.

Such a file is another base classifier, and is certified as such: nothing that was proven of the float file is taken
over. So its acceptance is its own. Scores may differ; votes on replayed noise may flip, up to a share; and its
certified accuracy on held-out images is measured beside that of the float file, and stands in the card.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import onnx

from robustinfer import Predictor
from robustinfer.card import Card
from robustinfer.errors import ExportError

from .acceptance import Images, noisy_copies
from .onnx_file import with_card

__all__ = ["FLIPS", "HeldOut", "Precision", "lower"]

Precision = Literal["float32", "int8", "fp16"]

FLIPS = {"float32": 0.01, "int8": 0.1, "fp16": 0.01}
"""Share of votes on noise that may flip against the ensemble."""

_SIGMA = 0.25  # for a model that was not trained for noise, as in acceptance
_COPIES = 4  # noisy copies per calibration image
_HELD_OUT_N, _ALPHA, _SEED = 500, 0.001, 0


@dataclass(frozen=True)
class HeldOut:
    """Images whose certified accuracy is measured, with their labels."""

    images: Images
    labels: npt.NDArray[np.int64]


def lower(
    precision: Precision,
    build: Callable[[Card], bytes],
    card: Card,
    *,
    calibration: Images | None,
    held_out: HeldOut | None,
) -> tuple[Callable[[Card], bytes], dict[str, Any]]:
    """The file in a lower precision, as a function of its card, and the figures that go into the card.

    int8 is static: its ranges are taken from noisy copies of the calibration images, which are what the graph will see,
    once and for all. (Dynamic quantisation takes them from each batch, so that scores would depend on neighbours.)
    """
    if precision not in get_args(Precision):
        raise ExportError(f"A precision is one of {', '.join(get_args(Precision))}; found {precision!r}.")
    model = onnx.load_from_string(build(card))
    facts: dict[str, Any] = {"precision": precision}
    if precision == "fp16":
        graph = _half(model)
    else:
        if calibration is None:
            raise ExportError(
                "int8 is calibrated on noisy training images, and the data of this model is not at hand: name its "
                "folder with --data (a run) or --images (a wrapped model)."
            )
        graph = _integers(model, calibration, card.sigma or _SIGMA)
        facts["calibration"] = {"images": calibration.source, "count": len(calibration.pixels), "copies": _COPIES}
    lowered: Callable[[Card], bytes] = lambda final: with_card(graph, final)  # noqa: E731
    if held_out is not None and card.sigma is not None:
        facts["held_out"] = _held_out(build(card), lowered(card), card, held_out)
    return lowered, facts


def _integers(model: onnx.ModelProto, calibration: Images, sigma: float) -> onnx.ModelProto:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    name = model.graph.input[0].name
    batches = noisy_copies(calibration, sigma, _COPIES * len(calibration.pixels))

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._batches: Iterator[dict[str, Any]] = ({name: noisy} for _, _, noisy in batches)

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


def _held_out(plain: bytes, lowered: bytes, card: Card, held_out: HeldOut) -> dict[str, Any]:
    """Certified accuracy at radius 0 and average certified radius of both files, on the same images and noise."""
    found: dict[str, Any] = {"images": held_out.images.source, "count": len(held_out.labels), "n": _HELD_OUT_N}
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (("float32", plain), ("this file", lowered)):
            path = Path(folder) / "model.onnx"
            path.write_bytes(content)
            predictor = Predictor.load(path, device="cpu")
            radii = [
                certificate.radius if certificate.label == int(label) else 0.0
                for label, certificate in zip(
                    held_out.labels,
                    predictor.certify_many(held_out.images.pixels, n=_HELD_OUT_N, alpha=_ALPHA, seed=_SEED),
                    strict=True,
                )
            ]
            found[name] = {
                "certified_accuracy": float(np.mean(np.array(radii) > 0)),
                "acr": round(float(np.mean(radii)), 6),
            }
    return found
