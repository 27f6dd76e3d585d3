"""Fixtures shared by all parts: tiny models whose true behaviour is known."""

import os
import random
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import numpy as np
import pytest

from robustinfer import Card, InputSpec
from robustinfer.card import CARD_KEY
from robustinfer.smoothing import noise

from .commands import Robust, runner

LinearModel = Callable[..., Path]

# The same examples in every run, so that a failure is the change's fault; HYPOTHESIS_PROFILE=search looks for new ones.
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def fix_randomness() -> None:
    """Fix all that a test does not seed itself: fresh seeds of certificates, and the global generators."""
    noise.secrets = SimpleNamespace(randbits=random.Random(4).getrandbits)  # type: ignore[assignment, attr-defined]
    random.seed(4)
    np.random.seed(4)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(4)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before the fixtures of each test, so that neither their values nor the test's depend on the order of tests."""
    fix_randomness()


@pytest.fixture
def robust(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Robust:
    """Runs `robust WORDS...` in this process, in the test's own folder."""
    monkeypatch.chdir(tmp_path)
    return runner(monkeypatch, capsys)


@pytest.fixture
def linear_model(tmp_path: Path) -> LinearModel:
    """Writes an ONNX file of a linear classifier and returns its path.

    `weights` is (K, C*H*W), for an image of `shape`; scores = weights @ pixels + bias. The card says `sigma`; with
    `card=False` the file carries none, and `card=Card(...)` puts in that one, whatever the graph does.
    """

    def write(
        weights: Any,
        bias: Any | None = None,
        *,
        shape: tuple[int, int, int],
        sigma: float | None = 0.25,
        card: Card | bool = True,
        name: str = "linear",
    ) -> Path:
        weights = np.asarray(weights, dtype=np.float32)
        bias = np.zeros(len(weights), dtype=np.float32) if bias is None else np.asarray(bias, dtype=np.float32)
        if card is True:
            classes = tuple(f"class {index}" for index in range(len(weights)))
            card = Card(classes=classes, input=InputSpec(*shape), name=name, sigma=sigma)
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(linear_graph(weights, bias, shape, card or None))
        return path

    return write


def linear_graph(weights: Any, bias: Any, shape: Sequence[int], card: Card | None) -> bytes:
    """An ONNX graph `image` -> Flatten -> Gemm -> `scores`, with a card in its metadata."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["image"], ["flat"]),
            helper.make_node("Gemm", ["flat", "weights", "bias"], ["scores"], transB=1),
        ],
        "linear",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", *shape])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", len(weights)])],
        [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(bias, "bias")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if card is not None:
        helper.set_model_props(model, {CARD_KEY: card.dumps()})
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, so that the processes that share the tests end together."""
    items.sort(key=lambda item: (not item.get_closest_marker("slow"), not item.get_closest_marker("server")))


# Tests of these files share one server, or follow one another in one folder.
_TOGETHER = {
    "tests/serve/deploy/test_proxy.py": "server",
    "tests/serve/service/test_fuzz.py": "server",
    "tests/serve/service/test_openapi.py": "server",
    "tests/serve/asgi/test_protocols.py": "server",
    "tests/serve/test_client.py": "server",
    "tests/serve/test_server.py": "server",
    "tests/docs/test_quickstart.py": "quickstart",
}


@cache
def group_of(file: str) -> str | None:
    """The tests of which group must run in one process: those of a file, if they share something made once."""
    if file in _TOGETHER:
        return _TOGETHER[file]
    return file if 'scope="module"' in Path(__file__).parents[1].joinpath(file).read_text() else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Spread the tests one by one, and keep together what shares something.

    The mark `xdist_group` says so too, but pytest-xdist 3.8 carries it in an attribute that pytest 9.2 no longer has.
    """
    from xdist.scheduler import LoadScopeScheduling

    if config.getoption("dist") != "loadgroup":
        return None

    class KeepGroupsTogether(LoadScopeScheduling):  # type: ignore[misc]
        """Spreads tests by their group, or one by one."""

        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid.partition("::")[0]) or nodeid

    return KeepGroupsTogether(config, log)
