"""Tiny models with known answers, for the tests of serving."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from robustinfer.card import CARD_KEY, Card, InputSpec


def brightness_model(
    path: Path, *, name: str = "tiny", size: int = 8, channels: int = 1, sigma: float | None = 0.25
) -> Path:
    """A model file whose scores are linear in the mean pixel: dark, medium, bright."""
    card = Card(
        classes=("dark", "medium", "bright"),
        input=InputSpec(channels, size, size),
        name=name,
        version="1",
        sigma=sigma,
    )
    weight = np.repeat(np.array([[-4.0, 0.0, 4.0]], dtype=np.float32), channels * size * size, axis=0)
    bias = np.array([1.5, 0.5, -2.5], dtype=np.float32)
    weight /= channels * size * size
    nodes = [
        helper.make_node("Flatten", ["image"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weight", "bias"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "brightness",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", channels, size, size])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(bias, "bias")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {CARD_KEY: card.dumps()})
    onnx.save(model, str(path))
    return path
