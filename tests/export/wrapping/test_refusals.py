"""What is not a classifier, or does not fit what was said about it, is refused with a sentence, and no file is left."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from robust.export import wrap
from torch import nn

from robustinfer.errors import RobustinferError

from .test_wrapper import CLASSES, MEAN, STD, Small, graph


def refused(folder: Path, match: str, source: Any, **options: Any) -> None:
    defaults: dict[str, Any] = {"classes": CLASSES, "mean": MEAN, "std": STD, "samples": 20}
    target = folder / "out" / "model.onnx"
    with pytest.raises(RobustinferError, match=match) as caught:
        wrap(source, target, **(defaults | options))
    assert "\n" not in str(caught.value)
    assert not target.parent.exists()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"classes": ("a", "b", "c")}, "gives 4 scores per image, but 3 class names"),
        ({"classes": ("a",)}, "at least two classes; found 1"),
        ({"classes": "nowhere.txt"}, "Cannot read the class names nowhere.txt"),
        ({"mean": (0.5, 0.5)}, "mean has one number, or one for each of 3 channels; found 2"),
        ({"std": (1.0, 0.0, 1.0)}, "std must be positive; found 1, 0, 1"),
        ({"mean": (123.7, 116.3, 103.5), "std": 58.0}, r"found mean 123.7.*divide both by 255: --mean 0.4851,0.456"),
        ({"std": 58.0}, "divide both by 255"),
        ({"resize": "strech"}, "resize is one of .*'strech'"),
        ({"crop": 87.5}, "crop is the share of each side"),
        ({"size": 5}, "takes images of height 4; --size says 5"),
        ({"size": (4, 0)}, "positive height and width; found 4 x 0"),
        ({"layout": "chwn"}, "layout is one of nchw, nhwc; found 'chwn'"),
        ({"sigma": -0.25}, "sigma is a positive number; found -0.25"),
        ({"images": "nowhere"}, "no folder nowhere"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_that_do_not_fit(tmp_path: Path, options: dict[str, Any], match: str) -> None:
    refused(tmp_path, match, graph(tmp_path / "foreign.onnx"), **options)


def test_an_open_size(tmp_path: Path) -> None:
    refused(tmp_path, "leaves the size of its images open", graph(tmp_path / "foreign.onnx", sides=("h", "w")))


def test_whole_numbers_need_no_normalisation(tmp_path: Path) -> None:
    source = graph(tmp_path / "foreign.onnx", kind=TensorProto.UINT8)
    refused(tmp_path, "its normalisation is inside: leave mean and std out", source)


def _graph(path: Path, nodes: Any, inputs: Any, outputs: Any, opset: int = 13) -> Path:
    def values(given: Any) -> Any:
        return [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in given]

    made = helper.make_graph(nodes, "foreign", values(inputs), values(outputs))
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path


X = ("x", TensorProto.FLOAT, ["N", 3, 4, 6])
Y = ("y", TensorProto.FLOAT, ["N", 4])


def test_graphs_that_are_not_classifiers(tmp_path: Path) -> None:
    path, flat = tmp_path / "foreign.onnx", helper.make_node("Flatten", ["x"], ["y"])
    two = [flat, helper.make_node("Identity", ["x"], ["boxes"])]
    boxes = ("boxes", TensorProto.FLOAT, ["N", 3, 4, 6])
    refused(tmp_path, r"has 2 \(y, boxes\), as detectors do", _graph(path, two, [X], [Y, boxes]))
    refused(tmp_path, r"gives \(\?, 3, 4, 6\): it is not a classifier", _graph(path, two[1:], [X], [boxes]))
    both = [helper.make_node("Add", ["x", "z"], ["s"]), helper.make_node("Flatten", ["s"], ["y"])]
    refused(tmp_path, r"has 2 \(x, z\)", _graph(path, both, [X, ("z", *X[1:])], [Y]))
    words = ("x", TensorProto.INT64, ["N", 12])
    refused(tmp_path, "is int64 of", _graph(path, [helper.make_node("Cast", ["x"], ["y"], to=1)], [words], [Y]))
    chance = [helper.make_node("RandomNormalLike", ["x"], ["r"]), helper.make_node("Flatten", ["r"], ["y"])]
    refused(tmp_path, "RandomNormalLike that is random", _graph(path, chance, [X], [Y]))
    refused(tmp_path, "has ONNX opset 9", _graph(path, [flat], [X], [Y], opset=9))
    mixing = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "m"], ["d"]),
        helper.make_node("ReduceMean", ["d"], ["f"], axes=[2], keepdims=0),
        helper.make_node("ReduceMean", ["f"], ["y"], axes=[2], keepdims=0),
    ]
    refused(
        tmp_path, "cannot be made dynamic", _graph(path, mixing, [X], [("y", 1, ["N", 3])]), classes=("a", "b", "c")
    )


def test_files_that_are_not_graphs(tmp_path: Path) -> None:
    refused(tmp_path, "no model file", tmp_path / "nothing.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"not a graph")
    refused(tmp_path, "damaged, or not an ONNX model", tmp_path / "broken.onnx")
    wrap(graph(tmp_path / "foreign.onnx"), tmp_path / "done.onnx", classes=CLASSES, samples=20)
    refused(tmp_path, "is a model file already", tmp_path / "done.onnx")
    source = graph(tmp_path / "beside.onnx", sidecar=True)
    (tmp_path / "beside.onnx.data").unlink()
    refused(tmp_path, "not beside it: keep both files in one folder", source)


class _Boxes(nn.Module):
    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"boxes": image}


class _Carrier:
    """An object that only unpickling could bring back."""


def test_torch_modules_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "their_network", Small, raising=False)
    sized: dict[str, Any] = {"size": (4, 6)}
    refused(tmp_path, "does not say how large", Small())
    refused(tmp_path, "does not say how large", "torch:their_network")
    refused(tmp_path, "gives a dict, as detectors do", _Boxes(), **sized)
    refused(tmp_path, r"gives \(2, 3, 4, 6\) for 2 images", nn.Identity(), **sized)
    refused(tmp_path, "does not take images of shape", nn.Conv2d(1, 1, 3), **sized)
    refused(tmp_path, "gives 5 scores per image, but 4", "torch:their_network(5)", **sized)
    refused(tmp_path, "torch:nowhere cannot be imported", "torch:nowhere", **sized)
    refused(tmp_path, "nowhere:network cannot be imported", "nowhere:network", **sized)
    refused(tmp_path, "failed: TypeError", "torch:their_network(1, 2)", **sized)
    refused(tmp_path, "with literals", "torch:their_network(open('x'))", **sized)
    refused(tmp_path, "to return a torch.nn.Module, found int", "builtins:int", **sized)
    network = "torch:their_network"
    refused(tmp_path, "no file of parameters", network, parameters=tmp_path / "nothing.pth", **sized)
    file = tmp_path / "parameters.pth"
    torch.save({"module": _Carrier()}, file)
    refused(tmp_path, "holds more than tensors, and nothing else is unpickled", network, parameters=file, **sized)
    torch.save({"other.weight": torch.zeros(4, 3)}, file)
    refused(tmp_path, "it lacks head.weight", network, parameters=file, **sized)
    torch.save({"head.weight": torch.zeros(5, 3)}, file)
    refused(tmp_path, "does not fit the network: size mismatch", network, parameters=file, **sized)
    torch.save([1, 2], file)
    refused(tmp_path, "is not a state_dict", network, parameters=file, **sized)
    np.save(tmp_path / "parameters.npy", np.zeros(3))
    refused(tmp_path, "safetensors or .pth file", network, parameters=tmp_path / "parameters.npy", **sized)
    (tmp_path / "parameters.safetensors").write_bytes(b"no")
    refused(tmp_path, "damaged, or not a file", network, parameters=tmp_path / "parameters.safetensors", **sized)
