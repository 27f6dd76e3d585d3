"""Tiny models with known answers, for the tests of serving."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from robustinfer import Card, InputSpec
from robustinfer.card import Resize

from ..conftest import linear_graph

Shape = tuple[int, int, int]


def _brightness(name: str, shape: Shape, resize: Resize = "refuse", sigma: float = 0.25) -> tuple[Any, Any, Card]:
    """A model that tells dark (mean pixel below 0.25), medium and bright (above 0.75) apart: weights, bias, card."""
    card = Card(classes=("dark", "medium", "bright"), input=InputSpec(*shape, resize=resize), name=name, sigma=sigma)
    size = card.input.size
    weights = np.repeat(np.array([[-4.0], [0.0], [4.0]], dtype=np.float32), size, axis=1) / np.float32(size)
    return weights, np.array([1.5, 0.5, -2.5], dtype=np.float32), card


def brightness_model(
    path: Path, *, name: str = "tiny", shape: Shape = (1, 8, 8), resize: Resize = "refuse", sigma: float = 0.25
) -> Path:
    """The model as an ONNX file."""
    weights, bias, card = _brightness(name, shape, resize, sigma)
    path.write_bytes(linear_graph(weights, bias, shape, card))
    return path


def one_pixel_model(path: Path) -> Path:
    """A network of the same classes that looks at the first pixel alone, and so is fooled by changing it."""
    weights, bias, card = _brightness("ordinary", (1, 8, 8))
    weights[:, 0], weights[:, 1:] = weights[:, 0] * card.input.size, 0
    path.write_bytes(linear_graph(weights, bias, card.input.shape, card))
    return path


def hanging_model(path: Path) -> Path:
    """The model, whose engine never comes back from a batch of white pictures: a loop of a trillion steps, for nothing.

    Noise moves the mean of a picture by 0.03 at a time, so white ones (1.0) are told from others (below 0.8) surely.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights, bias, card = _brightness("tiny", (1, 8, 8))
    model = onnx.load_from_string(linear_graph(weights, bias, (1, 8, 8), card))
    graph = model.graph
    graph.node[-1].output[0] = "sums"
    for name, value in {
        "limit": np.float32(0.9),
        "trillion": np.float32(1e12),
        "yes": np.bool_(True),
        "zero": np.float32(0.0),
    }.items():
        graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    info = partial(helper.make_tensor_value_info, shape=[])
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["still_go_on"]),
            helper.make_node("Sin", ["so_far"], ["then"]),
        ],
        "loop",
        [info("step", TensorProto.INT64), info("go_on", TensorProto.BOOL), info("so_far", TensorProto.FLOAT)],
        [info("still_go_on", TensorProto.BOOL), info("then", TensorProto.FLOAT)],
    )
    graph.node.extend(
        [
            helper.make_node("ReduceMean", ["image"], ["mean"], keepdims=0),
            helper.make_node("Greater", ["mean", "limit"], ["is_white"]),
            helper.make_node("Cast", ["is_white"], ["one_or_zero"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["one_or_zero", "trillion"], ["many"]),
            helper.make_node("Cast", ["many"], ["steps"], to=TensorProto.INT64),
            helper.make_node("Loop", ["steps", "yes", "zero"], ["nothing"], body=body),
            helper.make_node("Add", ["sums", "nothing"], ["scores"]),
        ]
    )
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return path


def brightness_script(path: Path, *, name: str, shape: Shape) -> Path:
    """The model as a TorchScript file, or, by its suffix, as a pt2 file."""
    import torch
    from robust.export import export_ensemble
    from robust.train.members.ensemble import Ensemble

    weights, bias, card = _brightness(name, shape)
    head = torch.nn.Linear(card.input.size, len(card.classes))
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(weights))
        head.bias.copy_(torch.from_numpy(bias))
    member = torch.nn.Sequential(torch.nn.Flatten(), head)
    export_ensemble(Ensemble([member], [1.0]).eval(), card, path, samples=100)
    return path
