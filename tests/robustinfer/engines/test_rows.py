"""A graph whose scores depend on the neighbours of an image is refused when it is opened, in every format."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from robustinfer import Card, InputSpec, Predictor
from robustinfer.card import CARD_KEY, CardMember
from robustinfer.engines import check_rows, external_files
from robustinfer.engines import onnx as onnx_engine
from robustinfer.errors import BatchError, EngineError

SHAPE = (3, 8, 8)
CARD = Card(classes=("a", "b", "c"), input=InputSpec(*SHAPE), sigma=0.25)
IMAGE = np.random.default_rng(1).integers(0, 256, size=SHAPE, dtype=np.uint8)
REASON = "depend on the images beside it"


class Centred(nn.Module):
    """Subtracts the mean of the batch: the smallest of all batch statistics."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image - image.mean(dim=0, keepdim=True)


class Voting(nn.Module):
    """Scores of two members side by side."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        scores = self.network(image)
        return torch.stack([scores, 2 * scores], dim=1)


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    layers: dict[str, list[nn.Module]] = {
        "independent": [],
        "batch norm": [nn.BatchNorm2d(4)],
        "batch statistics": [nn.BatchNorm2d(4, track_running_stats=False)],
        "batch mean": [Centred()],
        "instance norm": [nn.InstanceNorm2d(4)],
        "group norm": [nn.GroupNorm(2, 4)],
    }
    return nn.Sequential(nn.Conv2d(3, 4, 3), *layers[kind], nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).eval()


def write(module: nn.Module, path: Path, card: Card = CARD) -> Path:
    example, batch = (torch.zeros(2, *SHAPE),), torch.export.Dim("batch", min=1, max=4096)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        if path.suffix == ".pt":
            traced = torch.jit.trace(module, example)
            torch.jit.save(traced, str(path), _extra_files={f"{CARD_KEY}.json": card.dumps()})
        elif path.suffix == ".pt2":
            program = torch.export.export(module, example, dynamic_shapes=({0: batch},))
            torch.export.save(program, path, extra_files={f"{CARD_KEY}.json": card.dumps()})
        else:
            torch.onnx.export(
                module, example, path, dynamo=True, dynamic_shapes=({0: batch},), external_data=False, verbose=False
            )
    return path


@pytest.mark.parametrize("suffix", [".onnx", ".pt", ".pt2"])
@pytest.mark.parametrize("kind", ["batch statistics", "batch mean"])
def test_batch_statistics_are_refused(tmp_path: Path, suffix: str, kind: str) -> None:
    path = write(network(kind), tmp_path / f"model{suffix}")
    with pytest.raises(BatchError, match=REASON):
        Predictor.load(path, card=CARD)
    alone = Predictor.load(path, card=CARD, batch=1)  # then the function is one of the image only
    certificate = alone.certify(IMAGE, n=100, seed=0)
    assert alone.verify(certificate, IMAGE).ok


@pytest.mark.parametrize("suffix", [".onnx", ".pt", ".pt2"])
@pytest.mark.parametrize("kind", ["independent", "batch norm", "instance norm", "group norm"])
def test_rows_that_stand_alone_are_accepted(tmp_path: Path, suffix: str, kind: str) -> None:
    Predictor.load(write(network(kind), tmp_path / f"model{suffix}"), card=CARD)


def test_voting_members_are_looked_at_as_well(tmp_path: Path) -> None:
    members = tuple(CardMember("cnn", beta, stage) for stage, beta in enumerate((1.0, 0.5), start=1))
    card = Card(classes=CARD.classes, input=CARD.input, sigma=0.25, kind="votes", members=members)
    Predictor.load(write(Voting(network("independent")), tmp_path / "good.onnx"), card=card)
    with pytest.raises(BatchError, match=REASON):
        Predictor.load(write(Voting(network("batch statistics")), tmp_path / "bad.onnx"), card=card)


def test_dynamic_quantisation_is_refused(tmp_path: Path) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    whole = linear(tmp_path / "whole.onnx", "batch")
    quantization.quantize_dynamic(whole, tmp_path / "quantised.onnx", weight_type=quantization.QuantType.QUInt8)
    with pytest.raises(BatchError, match=REASON):
        Predictor.load(tmp_path / "quantised.onnx", card=CARD)


@pytest.mark.parametrize("opened", ["in memory", "by an older runtime", "because it is large"])
def test_dynamic_quantisation_is_refused_however_the_file_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: str
) -> None:
    """Large models, and those with weights beside them in older runtimes, are opened by their name."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    whole, path = linear(tmp_path / "whole.onnx", "batch"), tmp_path / "beside.onnx"
    quantization.quantize_dynamic(whole, tmp_path / "quantised.onnx", weight_type=quantization.QuantType.QUInt8)
    beside: dict[str, Any] = {"save_as_external_data": True, "size_threshold": 100}  # the runtime needs shapes inside
    onnx.save(onnx.load(tmp_path / "quantised.onnx"), path, location="w.bin", **beside)
    onnx.save(onnx.load(whole), tmp_path / "float.onnx", location="f.bin", **beside)
    assert external_files(path)
    if opened == "because it is large":
        monkeypatch.setattr(onnx_engine, "_IN_MEMORY", 1)
    elif opened == "by an older runtime":
        monkeypatch.delattr(onnxruntime.SessionOptions, "add_external_initializers_from_files_in_memory")
    with pytest.raises(BatchError, match="quantised dynamically"):
        Predictor.load(path, card=CARD)
    assert Predictor.load(path, card=CARD, batch=1).predict(IMAGE, n=50).samples_used
    assert Predictor.load(tmp_path / "float.onnx", card=CARD).predict(IMAGE, n=50).samples_used


def linear(path: Path, batch: int | str) -> Path:
    weights = np.random.default_rng(0).normal(size=(192, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Reshape", ["image", "shape"], ["flat"]),
            helper.make_node("MatMul", ["flat", "weights"], ["scores"]),
        ],
        "linear",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, *SHAPE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, 3])],
        [
            numpy_helper.from_array(weights, "weights"),
            numpy_helper.from_array(np.array([-1, 192], dtype=np.int64), "shape"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def test_a_fixed_batch_of_one_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    path = linear(tmp_path / "one.onnx", 1)
    with pytest.raises(BatchError, match=r"any number of images in one run; 4 of them fail.*load it with batch=1"):
        Predictor.load(path, card=CARD)
    assert Predictor.load(path, card=CARD, batch=1).predict(IMAGE, n=50).samples_used
    Predictor.load(linear(tmp_path / "free.onnx", "batch"), card=CARD)


class Rows:
    """An engine of a Python function."""

    name, device, batch = "a function", "cpu", 64

    def __init__(self, function: Callable[[np.ndarray], np.ndarray]) -> None:
        self._function = function

    def scores(self, images: np.ndarray) -> np.ndarray:
        return self._function(images)


def means(images: np.ndarray) -> np.ndarray:
    mean = images.reshape(len(images), -1).mean(axis=1)
    return np.stack([mean, 1 - mean], axis=1)


def pair_only(images: np.ndarray) -> np.ndarray:
    if len(images) == 1:
        raise EngineError("A batch has at least two images.")
    return means(images)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda images: means(images) + images.max(), REASON),
        (lambda images: means(images) + np.arange(len(images))[:, None], REASON),
        (lambda images: means(images)[np.argsort(-means(images)[:, 0])], REASON),
        (lambda images: means(images) * (np.nan if len(images) > 2 else 1), REASON),
        (lambda images: means(images[:1]), "found .* for 4 images in one run"),
        (lambda images: means(images)[:, 0], "Expected scores of shape"),
    ],
)
def test_every_way_to_depend_on_neighbours_is_seen(function: Any, reason: Any) -> None:
    with pytest.raises(BatchError, match=reason):
        check_rows(Rows(function), SHAPE)


@pytest.mark.parametrize(
    "function",
    [
        means,
        pair_only,
        lambda images: 0 * means(images),
        lambda images: np.full((len(images), 2), np.nan),
        lambda images: means(images) / 0.0,
        lambda images: means(images) * (1 + 1e-5 * len(images)),
    ],
)
def test_rounding_and_broken_scores_are_left_alone(function: Any) -> None:
    with np.errstate(divide="ignore", invalid="ignore"):
        check_rows(Rows(function), SHAPE)
