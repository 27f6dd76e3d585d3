"""A matrix product by the engine's own runtime: numpy's may make far less of a processor than ONNX Runtime does."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .onnx import OnnxEngine, runtime, session_options

__all__ = ["matrix_products"]

Product = Callable[[], Any]


def matrix_products(engine: object, left: npt.NDArray[np.float32], right: npt.NDArray[np.float32]) -> list[Product]:
    """The product of two square matrices by numpy and, if that is what the engine computes with, by ONNX Runtime."""
    out = np.empty_like(left)
    products: list[Product] = [lambda: np.matmul(left, right, out=out)]
    if isinstance(engine, OnnxEngine):
        providers = ["CPUExecutionProvider"]
        session = runtime().InferenceSession(_graph(len(left)), session_options(engine.threads), providers=providers)
        products.append(lambda: session.run(None, {"a": left, "b": right}))
    return products


def _graph(side: int) -> bytes:
    """An ONNX model of one MatMul, by the field numbers of onnx.proto: the runtime needs no onnx package for it."""
    shape = _field(2, _field(1, _field(1, side)) * 2)
    typed = _field(2, _field(1, _field(1, 1) + shape))  # 1: float32
    node = _field(1, "a") + _field(1, "b") + _field(2, "c") + _field(4, "MatMul")
    values = [_field(number, _field(1, name) + typed) for number, name in ((11, "a"), (11, "b"), (12, "c"))]
    graph = _field(1, node) + _field(2, "product") + b"".join(values)
    return _field(1, 8) + _field(7, graph) + _field(8, _field(2, 13))  # version of the format; of the operators


def _field(number: int, value: int | str | bytes) -> bytes:
    """A field of a protobuf message: a number, a text, or another message."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits per byte, the lowest first; the top bit says that more follow."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])
