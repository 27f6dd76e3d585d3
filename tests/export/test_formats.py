"""The files say what torch says: every format, every architecture, odd sizes, negative betas."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from robust.export import export_ensemble
from robust.export.fusion import fuse
from robust.export.onnx_file import onnx_file
from robust.train.members import architectures
from robust.train.members.ensemble import Ensemble

from robustinfer import Predictor
from robustinfer.card import Card
from robustinfer.smoothing.noise import add_noise

from .conftest import make_ensemble

SUFFIXES = (".onnx", ".pt", ".pt2")
QUICK = ("cnn", "resnet12")
REPRESENTATIVE = ("lenet",)


def agrees(path: Path, ensemble: Ensemble, card: Card, images: npt.NDArray[np.float32]) -> None:
    """Scores within 1e-4 of the largest, and the same label wherever the margin is wider than that."""
    with torch.inference_mode():
        expected = ensemble(torch.from_numpy(images)).numpy()
    found = Predictor.load(path, device="cpu", threads=1).engine.scores(images)
    allowed = 1e-4 * np.abs(expected).max()
    assert found.shape == expected.shape == (len(images), len(card.classes))
    assert np.abs(found - expected).max() <= allowed
    ordered = np.sort(expected, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > 2 * allowed
    assert np.array_equal(found.argmax(1)[clear], expected.argmax(1)[clear])


def clean_and_noisy(card: Card, *, seed: int = 1) -> npt.NDArray[np.float32]:
    generator = np.random.default_rng(seed)
    clean = generator.integers(0, 256, (3, *card.input.shape), dtype=np.uint8)
    noisy = np.empty((4, *card.input.shape), dtype=np.float32)
    add_noise(clean[0], noise="philox4x64-10/lanes", sigma=0.5, seed=seed, first=0, out=noisy)
    return np.concatenate([clean / np.float32(255), noisy])


def exported(
    path: Path,
    architecture: str,
    betas: list[float],
    shape: tuple[int, int, int],
    seed: int,
    *,
    sampler: bool = True,
) -> None:
    width = 0.05 if architecture.startswith("imagenet") else 0.25
    classes = 2 + seed % 7
    ensemble, card = make_ensemble(
        architecture, shape=shape, betas=betas, seed=seed, width=width, classes=classes, sigma=0.5
    )
    # Acceptance refuses a sampler whose votes are not the runtime's, but for near-ties.
    export_ensemble(ensemble, card, path, samples=20, sampler=sampler and path.suffix != ".pt2")
    images = clean_and_noisy(card, seed=seed)
    agrees(path, ensemble, card, images)
    agrees(path, ensemble, card, images[:1])  # the batch is free


@pytest.mark.parametrize(
    ("architecture", "suffix"),
    [("cnn", ".onnx"), ("fast", ".onnx"), ("fast", ".pt"), *((a, s) for a in QUICK for s in (".pt", ".pt2"))],
)
def test_formats_agree_with_torch(tmp_path: Path, architecture: str, suffix: str) -> None:
    exported(tmp_path / f"model{suffix}", architecture, [0.8, -0.3], (3, 9, 13), seed=3)


@pytest.mark.slow
@pytest.mark.representative
@pytest.mark.parametrize("architecture", REPRESENTATIVE)
def test_representative_architectures(tmp_path: Path, architecture: str) -> None:
    for suffix in SUFFIXES:
        exported(tmp_path / f"model{suffix}", architecture, [0.8, -0.3], (3, 33, 35), seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [name for name in architectures() if name not in QUICK + REPRESENTATIVE])
def test_all_other_architectures(tmp_path: Path, architecture: str) -> None:
    for suffix in SUFFIXES:
        exported(tmp_path / f"model{suffix}", architecture, [0.8], (3, 33, 35), seed=3)


betas = st.lists(st.floats(-3, 3).filter(lambda beta: abs(beta) > 1e-3), min_size=1, max_size=5)
sizes = st.tuples(st.integers(1, 4), st.integers(8, 21), st.integers(8, 21))


@given(st.sampled_from(SUFFIXES), betas, sizes, st.integers(0, 2**31))
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_ensembles(
    tmp_path: Path, suffix: str, betas: list[float], shape: tuple[int, int, int], seed: int
) -> None:
    exported(tmp_path / f"model{suffix}", "cnn", betas, shape, seed)


@pytest.mark.slow
@given(st.sampled_from(SUFFIXES), st.sampled_from(QUICK), betas, sizes, st.integers(0, 2**31))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_many_random_ensembles(
    tmp_path: Path, suffix: str, architecture: str, betas: list[float], shape: tuple[int, int, int], seed: int
) -> None:
    exported(tmp_path / f"model{suffix}", architecture, betas, shape, seed)


@pytest.mark.parametrize("opset", [18, 23])
def test_opsets(tmp_path: Path, opset: int) -> None:
    ensemble, card = make_ensemble()
    (tmp_path / "model.onnx").write_bytes(onnx_file(fuse(ensemble, card.input), card, sampler=True, opset=opset)(card))
    model = onnx.load(tmp_path / "model.onnx")
    assert [entry.version for entry in model.opset_import if not entry.domain] == [opset]
    agrees(tmp_path / "model.onnx", ensemble, card, clean_and_noisy(card))


def test_one_graph_without_batch_normalisation_dropout_or_sidecar(tmp_path: Path) -> None:
    exported(tmp_path / "model.onnx", "resnet12", [0.8, -0.3], (3, 9, 13), seed=3, sampler=False)
    model = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    kinds = {node.op_type for node in model.graph.node}
    assert kinds <= {
        "Sub",
        "Div",
        "Conv",
        "Relu",
        "Add",
        "ReduceMean",
        "GlobalAveragePool",
        "Reshape",
        "Flatten",
        "Gemm",
    }
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert not any(tensor.external_data for tensor in model.graph.initializer)
