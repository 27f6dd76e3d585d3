"""The number of threads of long work: all cores, unless one thread is clearly faster."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from robustinfer import Predictor
from robustinfer import threads as threads_module
from robustinfer.threads import choose_threads, measure_threads


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [({2: 1.9, 1: 0.12}, 1), ({2: 1.0, 1: 1.9}, 2), ({2: 1.0, 1: 0.9}, 2), ({8: 1.0}, 8), ({1: 3.0}, 1)],
)
def test_the_usual_number_of_threads_is_given_up_for_a_reason_only(seconds: dict[int, float], chosen: int) -> None:
    assert choose_threads(seconds) == chosen


@pytest.mark.parametrize(("slow", "chosen"), [(1.0, 1), (0.1, 4)])
def test_the_engine_is_timed_with_all_cores_and_with_one(
    predictor_of: Callable[..., Predictor],
    half_space: Any,
    monkeypatch: pytest.MonkeyPatch,
    slow: float,
    chosen: int,
) -> None:
    usual, single = predictor_of(half_space), predictor_of(half_space)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(4), raising=False)
    monkeypatch.setattr(threads_module, "_time", lambda predictor: slow if predictor is usual else 0.2)
    found = measure_threads(usual, lambda: single)
    assert found is not None
    assert found.seconds == {4: slow, 1: 0.2}
    assert found.threads == chosen
    assert found.predictor is (usual if chosen == 4 else single)


def test_real_runs_are_timed_and_one_core_leaves_no_choice(
    predictor_of: Callable[..., Predictor], half_space: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = predictor_of(half_space)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(2), raising=False)
    found = measure_threads(usual, lambda: predictor_of(half_space))
    assert found is not None
    assert set(found.seconds) == {1, 2}
    assert min(found.seconds.values()) > 0
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    assert measure_threads(usual, lambda: predictor_of(half_space)) is None
