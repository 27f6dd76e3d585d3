"""Fixtures of the runtime's tests: engines that are plain Python functions, and procedures fed from a distribution."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from robustinfer import Card, InputSpec, Predictor
from robustinfer.smoothing.procedures import Outcome, Procedure

Array = npt.NDArray[Any]


class FunctionEngine:
    """An engine whose scores are computed by a Python function of the noisy images; it records its batches."""

    name = "a function"
    device = "cpu"

    def __init__(self, function: Callable[[Array], Array], batch: int = 64) -> None:
        self._function = function
        self._lock = threading.Lock()
        self.batch = batch
        self.batches: list[int] = []

    def scores(self, images: Array) -> Array:
        with self._lock:
            self.batches.append(len(images))
        return np.asarray(self._function(images), dtype=np.float32)


@pytest.fixture
def predictor_of() -> Callable[..., Predictor]:
    """Makes a Predictor of a Python function (N, C, H, W) -> scores (N, K)."""

    def make(
        function: Callable[[Array], Array],
        *,
        shape: tuple[int, int, int] = (1, 2, 2),
        classes: int = 2,
        sigma: float | None = 0.25,
        batch: int = 64,
    ) -> Predictor:
        card = Card(classes=tuple("abcdefghij"[:classes]), input=InputSpec(*shape), sigma=sigma)
        return Predictor(FunctionEngine(function, batch), card, digest="sha256:function")

    return make


@pytest.fixture
def half_space() -> Callable[[Array], Array]:
    """Scores of the classifier "the first pixel is above 127.5/255": class 1 above, class 0 below.

    The boundary lies between two grey levels, so under integer noise it is an exact half-space for the real-valued
    input too, and the smoothed classifier's radius at x is |x_1 - 127.5/255|, exactly.
    """

    def scores(images: Array) -> Array:
        margin = images.reshape(len(images), -1)[:, 0] - np.float32(127.5 / 255)
        return np.stack([-margin, margin], axis=1)

    return scores


@pytest.fixture
def feed() -> Callable[[Procedure, Callable[[int], Any]], Outcome]:
    """Runs a procedure to its end with votes from `draw(count)`, which may also return why no more come."""

    def run(procedure: Procedure, draw: Callable[[int], Any]) -> Outcome:
        wanted = next(procedure)
        while True:
            try:
                wanted = procedure.send(draw(wanted))
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome

    return run
