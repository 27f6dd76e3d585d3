"""Wrapping: each adaptation of a foreign graph against a closed form, and against the original behind its pipeline."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from robust.export import wrap
from safetensors.torch import save_file
from torch import nn

from robustinfer import Predictor
from robustinfer.card import card_schema
from robustinfer.engines.external import external_files

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
WEIGHTS = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
CLASSES = ("red", "green", "blue", "grey")
IMAGES = np.random.default_rng(1).integers(0, 256, (3, 3, 4, 6), dtype=np.uint8)


def graph(
    path: Path,
    *,
    batch: int | str = "N",
    layout: str = "nchw",
    kind: int = TensorProto.FLOAT,
    flatten: str = "Flatten",
    softmax: bool = False,
    sides: Sequence[int | str] = (4, 6),
    sidecar: bool = False,
) -> Path:
    """The mean of each channel, times WEIGHTS: a classifier whose scores have a closed form."""
    computed = TensorProto.FLOAT if kind == TensorProto.UINT8 else kind
    shape = [batch, 3, *sides] if layout == "nchw" else [batch, *sides, 3]
    value = "x"
    nodes: list[onnx.NodeProto] = []
    weights = WEIGHTS.astype(helper.tensor_dtype_to_np_dtype(computed))
    constants = [numpy_helper.from_array(weights, "weights")]

    def add(operator: str, *inputs: str, **attributes: Any) -> None:
        nonlocal value
        nodes.append(helper.make_node(operator, [value, *inputs], [f"v{len(nodes)}"], **attributes))
        value = f"v{len(nodes) - 1}"

    if kind == TensorProto.UINT8:
        add("Cast", to=TensorProto.FLOAT)
    if layout == "nhwc":
        add("Transpose", perm=[0, 3, 1, 2])
    add("GlobalAveragePool")
    if flatten == "Flatten":
        add("Flatten", axis=1)
    else:
        target = {"constant": [batch, 3], "other free": [batch, -1], "allowzero": [batch, -1]}[flatten]
        constants.append(numpy_helper.from_array(np.array(target, np.int64), "shape"))
        add("Reshape", "shape", **({"allowzero": 1} if flatten == "allowzero" else {}))
    add("MatMul", "weights")
    if softmax:
        add("Softmax", axis=1)
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "foreign",
            [helper.make_tensor_value_info("x", kind, shape)],
            [helper.make_tensor_value_info(value, computed, [batch, 4])],
            constants,
        ),
        opset_imports=[helper.make_opsetid("", 14)],
        ir_version=8,
    )
    if sidecar:
        onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)
    else:
        onnx.save(model, path)
    return path


def closed_form(images: Any, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> Any:
    """The scores of `graph` behind a normalisation."""
    means = (images / 255.0).mean(axis=(2, 3))
    return ((means - np.array(mean)) / np.array(std)) @ WEIGHTS.astype(np.float64)


def wrapped(source: Any, folder: Path, **options: Any) -> tuple[Any, Predictor]:
    defaults: dict[str, Any] = {"classes": CLASSES, "mean": MEAN, "std": STD, "samples": 20}
    result = wrap(source, folder / "model.onnx", **(defaults | options))
    predictor = Predictor.load(folder / "model.onnx", device="cpu")
    document = json.loads(predictor.card.dumps())
    jsonschema.validate(document, card_schema())
    assert predictor.card == result.card
    return result, predictor


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch": 1},
        {"batch": 2},
        {"batch": 1, "flatten": "constant"},
        {"batch": 2, "flatten": "constant"},
        {"batch": 1, "flatten": "other free"},
        {"batch": 1, "flatten": "allowzero"},  # as torch's exporter has it
        {"layout": "nhwc"},
        {"layout": "nhwc", "batch": 1, "flatten": "constant"},
        {"sidecar": True},
    ],
    ids=lambda options: ",".join(f"{name} {value}" for name, value in options.items()) or "as it is",
)
def test_an_adapted_graph_has_the_scores_of_the_closed_form(tmp_path: Path, options: dict[str, Any]) -> None:
    result, predictor = wrapped(graph(tmp_path / "foreign.onnx", **options), tmp_path)
    for count in (1, 2, 3):
        assert predictor.scores(IMAGES[:count]) == pytest.approx(closed_form(IMAGES[:count]), abs=1e-5)
    parity = result.card.parity
    assert parity["clean_flips"] == parity["flips"] == 0
    assert parity["relative_difference"] < 1e-5
    assert "torch" not in parity
    assert not external_files(tmp_path / "model.onnx")
    assert result.card.training["wrapped"]["batch"] == (options.get("batch"))


def test_half_precision(tmp_path: Path) -> None:
    result, predictor = wrapped(graph(tmp_path / "foreign.onnx", kind=TensorProto.FLOAT16, batch=1), tmp_path)
    scores = predictor.scores(IMAGES)
    assert scores.dtype == np.float32
    assert scores == pytest.approx(closed_form(IMAGES), abs=2e-2)
    assert any("float16" in note for note in result.notes)


def test_whole_numbers(tmp_path: Path) -> None:
    source = graph(tmp_path / "foreign.onnx", kind=TensorProto.UINT8, layout="nhwc", batch=1)
    result, predictor = wrapped(source, tmp_path, mean=0.0, std=1.0)
    # The network is linear in what it takes: whole numbers from 0 to 255.
    assert predictor.scores(IMAGES) == pytest.approx(255 * closed_form(IMAGES, (0,) * 3, (1,) * 3), rel=1e-4)
    assert any("0 to 255" in note for note in result.notes)
    # Pixels beyond [0,1], which noise makes, are clipped as such a network's own pipeline would have to.
    bright = np.full((2, 3, 4, 6), 1.7, np.float32)
    assert np.array_equal(predictor.engine.scores(bright), predictor.engine.scores(np.ones_like(bright)))


def test_probabilities_are_recognised_and_keep_their_order(tmp_path: Path) -> None:
    result, predictor = wrapped(graph(tmp_path / "foreign.onnx", softmax=True), tmp_path)
    expected = np.exp(closed_form(IMAGES))
    assert predictor.scores(IMAGES) == pytest.approx(expected / expected.sum(1, keepdims=True), abs=1e-5)
    assert np.array_equal(predictor.scores(IMAGES).argmax(1), closed_form(IMAGES).argmax(1))
    assert result.card.training["wrapped"]["output"] == "probabilities"
    assert any("probabilities" in note for note in result.notes)


def test_an_open_size_is_given(tmp_path: Path) -> None:
    _, predictor = wrapped(graph(tmp_path / "foreign.onnx", sides=("h", "w")), tmp_path, size=(4, 6))
    assert predictor.card.input.shape == (3, 4, 6)
    assert predictor.scores(IMAGES) == pytest.approx(closed_form(IMAGES), abs=1e-5)


def test_the_same_file_gives_the_same_bytes(tmp_path: Path) -> None:
    source = graph(tmp_path / "foreign.onnx")
    first, _ = wrapped(source, tmp_path)
    again, _ = wrapped(source, tmp_path)
    assert first.digest == again.digest


def photographs(folder: Path) -> Path:
    """Two pictures of each class, bright in the channel that its column of WEIGHTS likes best, and one broken file."""
    generator = np.random.default_rng(2)
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for number in range(2):
            pixels = generator.integers(100, 156, (40, 50, 3)).astype(np.float64)
            pixels += 99 * np.sign(WEIGHTS[:, label])
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{number}.png")
    (folder / "red" / "broken.png").write_bytes(b"not a picture")
    return folder


def test_labels_and_noise_on_images_at_hand(tmp_path: Path) -> None:
    folder = photographs(tmp_path / "photographs")
    options = {"images": folder, "sigma": 0.25, "crop": 0.875, "resize": "bicubic"}
    result, predictor = wrapped(graph(tmp_path / "foreign.onnx"), tmp_path, **options)
    assert (result.card.sigma, result.card.noise_trained) == (0.25, False)
    assert result.card.input.crop == 0.875
    assert result.noise.count == 8
    assert result.noise.accuracy is not None
    assert 0 <= result.noise.kept <= 1
    assert result.card.evaluation["under_noise"] == result.noise.to_json()
    assert result.noise.sentence == result.notes[-1]
    assert "under sigma 0.25 this network keeps" in result.noise.sentence
    assert any("1 images of the folder cannot be read" in note for note in result.notes)
    assert result.card.parity["images"] == "photographs"
    assert predictor.certify(IMAGES[0], n=200, sigma=0.5, seed=0).sigma == 0.5  # no sigma is the trained one


class Small(nn.Module):
    """The classifier of `graph` as a torch module."""

    def __init__(self, outputs: int = 4) -> None:
        super().__init__()
        self.head = nn.Linear(3, outputs, bias=False)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(image.mean((2, 3)))
        return scores


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_torch_module_with_its_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    module = Small()
    module.head.weight.data.copy_(torch.from_numpy(WEIGHTS.T))
    monkeypatch.setattr(torch, "their_network", Small, raising=False)  # a module that can be imported by name
    file = tmp_path / f"parameters{suffix}"
    if suffix == ".pth":
        torch.save({"state_dict": {f"module.{k}": v for k, v in module.state_dict().items()}}, file)
    else:
        save_file(module.state_dict(), file)
    result, predictor = wrapped("torch:their_network(outputs=4)", tmp_path, parameters=file, size=(4, 6))
    assert predictor.scores(IMAGES) == pytest.approx(closed_form(IMAGES), abs=1e-5)
    facts = result.card.training["wrapped"]
    assert facts["parameters"] == file.name
    assert facts["digest"].startswith("sha256:")
    assert result.card.name == "their_network"


def test_a_torch_module_in_python(tmp_path: Path) -> None:
    module = Small()
    module.head.weight.data.copy_(torch.from_numpy(WEIGHTS.T))
    for name in ("model.pt", "model.onnx"):
        wrap(module, tmp_path / name, classes=CLASSES, mean=MEAN, std=STD, size=(4, 6), samples=20)
        scores = Predictor.load(tmp_path / name, device="cpu").scores(IMAGES)
        assert scores == pytest.approx(closed_form(IMAGES), abs=1e-5)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # within torch's exporter
def test_a_torch_export_with_its_sidecar(tmp_path: Path) -> None:
    """torch's own export keeps parameters in a file beside the graph; the wrapped file holds them."""
    module = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 24, 4)).eval()
    path = tmp_path / "exported.onnx"
    torch.onnx.export(module, (torch.zeros(1, 3, 4, 6),), path, dynamo=True, external_data=True, verbose=False)
    assert external_files(path)
    _, predictor = wrapped(path, tmp_path)
    assert not external_files(tmp_path / "model.onnx")
    pixels = torch.from_numpy(IMAGES / np.float32(255))
    mean, std = (torch.tensor(numbers).reshape(1, 3, 1, 1) for numbers in (MEAN, STD))
    with torch.inference_mode():
        expected = module((pixels - mean) / std).numpy()
    assert predictor.scores(IMAGES) == pytest.approx(expected, abs=1e-5)
