"""Engines: ONNX Runtime without torch, TorchScript and pt2 with it; all of them give the same certificate."""

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robustinfer import Card, InputSpec, Predictor
from robustinfer.engines import onnx as onnx_engine
from robustinfer.engines.engine import good_batch
from robustinfer.engines.product import matrix_products
from robustinfer.errors import EngineError, MissingExtraError

from .cuda import Cuda

SHAPE = (3, 4, 4)
WEIGHTS = np.random.default_rng(0).normal(size=(3, 48)).astype(np.float32)
IMAGE = np.random.default_rng(1).integers(0, 256, size=SHAPE, dtype=np.uint8)
CARD = Card(classes=("a", "b", "c"), input=InputSpec(*SHAPE), sigma=0.25)


def torch_model() -> Any:
    import torch

    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3, bias=False)).eval()
    with torch.no_grad():
        module.get_parameter("1.weight").copy_(torch.from_numpy(WEIGHTS))
    return torch, module


@pytest.fixture
def torchscript(tmp_path: Path) -> Any:
    torch, module = torch_model()
    path = tmp_path / "linear.pt"
    with warnings.catch_warnings():
        # TorchScript is deprecated in torch, but people have files of it.
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(module, torch.zeros(2, *SHAPE))
        torch.jit.save(traced, str(path), _extra_files={"robustinfer.card.json": CARD.dumps()})
    return path


@pytest.fixture
def pt2(tmp_path: Path) -> Any:
    torch, module = torch_model()
    path = tmp_path / "linear.pt2"
    batch = torch.export.Dim("batch", min=1, max=4096)
    program = torch.export.export(module, (torch.zeros(2, *SHAPE),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path, extra_files={"robustinfer.card.json": CARD.dumps()})
    return path


@pytest.mark.parametrize("kind", ["torchscript", "pt2"])
def test_torch_files_give_the_certificate_of_the_onnx_file(
    kind: Any, request: pytest.FixtureRequest, linear_model: Callable[..., Path]
) -> None:
    onnx = Predictor.load(linear_model(WEIGHTS, shape=SHAPE))
    other = Predictor.load(request.getfixturevalue(kind))
    assert other.card == CARD
    assert other.device == "cpu"
    assert "torch" in other.engine.name
    assert other.digest.startswith("sha256:")
    read_only = IMAGE / np.float32(255)
    read_only.setflags(write=False)
    assert np.allclose(other.scores(read_only), onnx.scores(read_only), atol=1e-4)
    ours, theirs = (p.certify(IMAGE, n=2000, seed=3) for p in (onnx, other))
    replay = other.verify(ours, IMAGE, other_model=True)
    assert replay.flips <= 2
    assert abs(ours.radius - theirs.radius) < 0.01


def test_torch_files_refuse_an_absent_device(torchscript: Any) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    from robustinfer.errors import DeviceError

    with pytest.raises(DeviceError, match="cuda was requested, but torch finds 0"):
        Predictor.load(torchscript, device="cuda")
    with pytest.raises(DeviceError, match="auto, cpu, cuda or cuda:N"):
        Predictor.load(torchscript, device="tpu")


def test_onnx_files_reach_the_gpu_that_was_named_in_full_precision(
    linear_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cuda = linear_model(WEIGHTS, shape=SHAPE), Cuda(works=True)
    monkeypatch.setattr(onnx_engine, "runtime", lambda: cuda)
    gpu = ("CUDAExecutionProvider", {"device_id": 1, "use_tf32": 0})
    assert Predictor.load(path, device="cuda:1").device == "cuda:1"
    assert (cuda.asked, cuda.fallback) == ([gpu], False)
    cuda.fallback = True
    assert Predictor.load(path).device == "cuda:0"
    assert (cuda.asked[1:], cuda.fallback) == (["CPUExecutionProvider"], True)


def test_a_gpu_that_does_not_work_is_an_error_only_if_it_was_named(
    linear_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from robustinfer.errors import DeviceError

    path = linear_model(WEIGHTS, shape=SHAPE)
    monkeypatch.setattr(onnx_engine, "runtime", lambda: Cuda(works=False))
    with pytest.raises(DeviceError, match="cannot use cuda here: it chose CPUExecutionProvider"):
        Predictor.load(path, device="cuda")
    assert Predictor.load(path).device == "cpu"


@pytest.mark.parametrize("kind", ["torchscript", "pt2", "onnx"])
def test_an_image_the_graph_cannot_take_is_an_engine_error(
    kind: Any, request: pytest.FixtureRequest, linear_model: Callable[..., Path]
) -> None:
    """The card is wrong, or the graph has a fixed size: the engine's own message comes through in one sentence."""
    path = linear_model(WEIGHTS, shape=SHAPE) if kind == "onnx" else request.getfixturevalue(kind)
    engine = Predictor.load(path).engine
    with pytest.raises(EngineError, match="failed"):
        engine.scores(np.zeros((1, 3, 5, 5), dtype=np.float32))


def test_matrix_products_of_numpy_and_of_the_engine_are_the_same(
    linear_model: Callable[..., Path], torchscript: Any
) -> None:
    left, right = (np.random.default_rng(seed).random((200, 200), dtype=np.float32) for seed in (1, 2))
    engines = [Predictor.load(path, threads=1).engine for path in (linear_model(WEIGHTS, shape=SHAPE), torchscript)]
    by_numpy, by_runtime = matrix_products(engines[0], left, right)
    assert np.array_equal(by_numpy(), left @ right)
    assert np.allclose(by_runtime()[0], left @ right, rtol=1e-5)
    assert len(matrix_products(engines[1], left, right)) == 1


def test_threads_and_batch_are_arguments(linear_model: Callable[..., Path]) -> None:
    path = linear_model(WEIGHTS, shape=SHAPE)
    one, two = Predictor.load(path, threads=1, batch=33), Predictor.load(path, threads=2)
    assert one.batch == 33
    assert one.certify(IMAGE, n=500, seed=2).counts == two.certify(IMAGE, n=500, seed=2).counts


def run_python(code: Any, *arguments: Any) -> Any:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=250, check=True
    ).stdout.strip()


def test_an_onnx_model_never_loads_torch(linear_model: Callable[..., Path]) -> None:
    code = (
        "import sys, numpy; from robustinfer import Predictor; p = Predictor.load(sys.argv[1]);"
        "c = p.certify(numpy.full((3, 4, 4), 9, numpy.uint8), n=500); p.predict(numpy.full((3, 4, 4), 9, numpy.uint8));"
        "p.verify(c, numpy.full((3, 4, 4), 9, numpy.uint8));"
        "print([m for m in ('torch', 'onnx', 'statsmodels', 'matplotlib', 'scipy.stats') if m in sys.modules])"
    )
    assert run_python(code, linear_model(WEIGHTS, shape=SHAPE)) == "[]"


@pytest.mark.parametrize(
    ("hidden", "kind", "extra"), [("onnxruntime", "onnx", "cpu"), ("torch", "torchscript", "train")]
)
def test_a_missing_engine_names_what_to_install(
    hidden: Any,
    kind: Any,
    extra: Any,
    request: pytest.FixtureRequest,
    linear_model: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = linear_model(WEIGHTS, shape=SHAPE) if kind == "onnx" else request.getfixturevalue(kind)
    blocked = MissingModule(hidden)
    monkeypatch.setattr(sys, "meta_path", [blocked, *sys.meta_path])
    for name in [name for name in sys.modules if name.split(".")[0] == hidden]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match=rf"robustinfer\[{extra}\]"):
        Predictor.load(path)


class MissingModule:
    """A finder that pretends a package is not installed."""

    def __init__(self, name: Any) -> None:
        self._name = name

    def find_spec(self, name: Any, path: Any = None, target: Any = None) -> None:
        if name.split(".")[0] == self._name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None  # noqa: RET501  # the protocol's answer for "not mine"


@pytest.mark.parametrize(("values", "batch"), [(1, 1024), (784, 1024), (3072, 256), (150_528, 16), (10**9, 16)])
def test_the_batch_fits_the_size_of_the_images(values: Any, batch: Any) -> None:
    assert good_batch(values) == batch
