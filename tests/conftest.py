"""Fixtures shared by all parts: tiny models whose true behaviour is known."""

import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import numpy as np
import pytest

from robustinfer import Card, InputSpec
from robustinfer.card import CARD_KEY
from robustinfer.smoothing import noise

LinearModel = Callable[..., Path]

# The same examples in every run, so that a failure is the change's fault; HYPOTHESIS_PROFILE=search looks for new ones.
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def fix_randomness() -> None:
    """Fix all that a test does not seed itself: fresh seeds of certificates, and the global generators."""
    noise.secrets = SimpleNamespace(randbits=random.Random(4).getrandbits)  # type: ignore[assignment]
    random.seed(4)
    np.random.seed(4)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(4)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before the fixtures of each test, so that neither their values nor the test's depend on the order of tests."""
    fix_randomness()


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
        shape: Sequence[int],
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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of serving in one process, and those of the documentation: they share a server, or a quickstart.

    The mark `xdist_group` says so too, but pytest-xdist 3.8 carries it in an attribute that pytest 9.2 no longer has.
    """
    from xdist.scheduler import LoadGroupScheduling

    if config.getoption("dist") != "loadgroup":
        return None

    class KeepFoldersTogether(LoadGroupScheduling):  # type: ignore[misc,unused-ignore]
        """Groups by mark, and two folders as a whole."""

        def _split_scope(self, nodeid: str) -> str:
            folder = nodeid.split("/")[1]
            return folder if folder in {"serve", "docs"} else str(super()._split_scope(nodeid))

    return KeepFoldersTogether(config, log)
