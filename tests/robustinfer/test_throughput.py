"""Throughput by a clock of the test's own: engines say how long they take."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from robustinfer import Predictor
from robustinfer import throughput as measured
from robustinfer.throughput import compare_throughput, measure_throughput

Array = npt.NDArray[Any]


class Clock:
    """Stands still but for what engines take."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def engine(self, per_run: float, per_sample: float) -> Callable[[Array], Array]:
        def scores(images: Array) -> Array:
            self.now += per_run + per_sample * len(images)
            return np.tile(np.array([1.0, 0.0]), (len(images), 1))

        return scores


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(measured, "time", found)
    return found


def test_each_file_is_compared_at_the_batch_that_suits_it(clock: Clock, predictor_of: Callable[..., Predictor]) -> None:
    engines = clock.engine(0.0, 1 / 100), clock.engine(1.0, 1 / 800), clock.engine(0.0, 1 / 50)
    rows = compare_throughput([predictor_of(engine) for engine in engines], batches=(1, 400), seconds=10.0)
    assert [row.rate for row in rows] == pytest.approx([100, 400 / 1.5, 50])
    assert [row.times for row in rows] == pytest.approx([1, 4 / 1.5, 0.5])
    assert rows[1].batch == 400


def test_the_limit_is_the_best_matrix_product_over_the_cost_of_a_sample(
    clock: Clock, predictor_of: Callable[..., Predictor], monkeypatch: pytest.MonkeyPatch
) -> None:
    operations = 2 * 512**3

    def product(seconds: float) -> Callable[[], None]:
        return lambda: setattr(clock, "now", clock.now + seconds)

    products = [product(operations / 1e9), product(operations / 4e9)]  # 1 and 4 GFLOP per second
    monkeypatch.setattr(measured, "matrix_products", lambda engine, left, right: products)
    predictor = predictor_of(clock.engine(0.0, 1 / 100))
    found = measure_throughput(predictor, flops=20_000_000, batches=(8, 16), seconds=10.0)
    assert found.gflops == pytest.approx(4)
    assert found.limit == pytest.approx(200)
    assert found.share == pytest.approx(0.5)
    assert not found.disturbed
    assert measure_throughput(predictor, flops=60_000_000, batches=(8,), seconds=10.0).disturbed
