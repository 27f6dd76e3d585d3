"""`robust inspect`: card, digest, operators and cost, with and without the packages that read graphs."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from robust.export import export_ensemble
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from robustinfer.card import CARD_KEY, Card, InputSpec
from robustinfer.cli.main import app
from robustinfer.engines.inspection import inspect_model
from robustinfer.errors import ModelFileError
from robustinfer.files import sha256

from .conftest import make_ensemble


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], Card, int]:
    """One ensemble in all formats, its card, and its cost by torch's own counter."""
    folder = tmp_path_factory.mktemp("inspection")
    ensemble, card = make_ensemble("cnn", shape=(3, 11, 9))
    paths = {suffix: folder / f"model{suffix}" for suffix in (".onnx", ".pt", ".pt2")}
    for suffix, path in paths.items():
        export_ensemble(ensemble, card, path, samples=20, sampler=suffix == ".onnx")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        ensemble(torch.zeros(1, *card.input.shape))
    return paths, card, counter.get_total_flops()


@pytest.mark.parametrize("suffix", [".onnx", ".pt", ".pt2"])
def test_inspection(files: tuple[dict[str, Path], Card, int], suffix: str) -> None:
    paths, card, flops = files
    inspection = inspect_model(paths[suffix])
    assert inspection.card is not None
    assert inspection.card.classes == card.classes
    assert inspection.digest == sha256(paths[suffix])
    assert inspection.bytes == paths[suffix].stat().st_size
    assert inspection.flops == flops
    convolution = {".onnx": "Conv", ".pt": "_convolution", ".pt2": "conv2d"}[suffix]
    assert inspection.operators is not None
    assert inspection.operators[convolution] == 4  # two members of two
    assert inspection.parameters is not None
    assert inspection.parameters > 1000
    assert (inspection.sampler_operators is not None) == (suffix == ".onnx")
    json.dumps(inspection.to_json())


def convolution(path: Path, size: tuple[int | str, ...], *, function: bool = False, card: bool = True) -> Path:
    """A convolution and a matrix product, whose input has this size; as a function of the model's own, if wanted."""
    weights = [
        numpy_helper.from_array(np.zeros((4, 3, 3, 3), np.float32), "kernel"),
        numpy_helper.from_array(np.zeros((4, 2), np.float32), "head"),
    ]
    nodes = [
        helper.make_node("Conv", ["image", "kernel"], ["features"]),
        helper.make_node("GlobalAveragePool", ["features"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "head"], ["scores"]),
    ]
    opsets, functions = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)], []
    if function:
        functions = [helper.make_function("own", "Net", ["image", "kernel", "head"], ["scores"], nodes, opsets[:1])]
        nodes = [helper.make_node("Net", ["image", "kernel", "head"], ["scores"], domain="own")]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, size)],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [size[0], 2])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)
    if card:
        helper.set_model_props(model, {CARD_KEY: Card(classes=("a", "b"), input=InputSpec(3, 32, 32)).dumps()})
    path.write_bytes(model.SerializeToString())
    return path


def test_one_network_costs_the_same_however_it_was_exported(tmp_path: Path) -> None:
    cost = 2 * (4 * 30 * 30) * (3 * 3 * 3) + 2 * 4 * 2
    sizes: list[tuple[int | str, ...]] = [
        ("batch", 3, 32, 32),
        ("batch", 3, "height", "width"),
        (1, 3, 32, 32),
        (8, 3, 32, 32),
    ]
    for number, size in enumerate(sizes):
        for function in (False, True):
            path = convolution(tmp_path / f"{number}-{function}.onnx", size, function=function)
            assert inspect_model(path).flops == cost, (size, function)
            assert (inspect_model(path).operators or {})["Conv"] == 1
    unknown = convolution(tmp_path / "unknown.onnx", sizes[1], card=False)
    assert inspect_model(unknown).flops is None, "no figure is better than a wrong one"


@pytest.mark.parametrize(("suffix", "missing"), [(".onnx", "onnx"), (".pt", "torch")])
def test_the_card_without_the_package_that_reads_the_graph(
    files: tuple[dict[str, Path], Card, int], suffix: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, card, _ = files
    monkeypatch.setitem(sys.modules, missing, None)
    inspection = inspect_model(paths[suffix])
    assert inspection.card is not None
    assert inspection.card.classes == card.classes
    assert inspection.operators is None
    assert inspection.flops is None


@pytest.mark.parametrize("suffix", [".onnx", ".pt", ".pt2"])
def test_damaged_files(files: tuple[dict[str, Path], Card, int], suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"damaged{suffix}"
    path.write_bytes(files[0][suffix].read_bytes()[: 2 * 1024])
    with pytest.raises(ModelFileError, match="damaged"):
        inspect_model(path)


def test_no_model_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no model file"):
        inspect_model(tmp_path / "nothing.onnx")
    (tmp_path / "page.html").touch()
    with pytest.raises(ModelFileError, match="ends in"):
        inspect_model(tmp_path / "page.html")


def test_command_line(files: tuple[dict[str, Path], Card, int], linear_model: Any) -> None:
    paths, _, flops = files
    text = CliRunner().invoke(app, ["inspect", str(paths[".onnx"])]).stdout
    assert sha256(paths[".onnx"]) in text
    assert f"{flops / 1e6:,.2f} MFLOP per sample" in text
    assert "member 2" in text
    document = json.loads(CliRunner().invoke(app, ["inspect", str(paths[".onnx"]), "--json"]).stdout)
    assert document["card"]["parity"]["flips"] == 0
    foreign = linear_model([[1.0, 0.0], [0.0, 1.0]], shape=(1, 1, 2), card=False)
    assert "none: `robust wrap` makes it a model file" in CliRunner().invoke(app, ["inspect", str(foreign)]).stdout
