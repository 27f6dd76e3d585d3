"""How many threads: those of all cores, unless one alone is clearly faster, as it is on a machine that others use, too.

Threads of one step wait for each other. On a busy machine one of them is always held up, and steps can take many times
as long; so a few steps are timed before long work, in training (`robust.train`) and for certificates of a data set.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from .predictor import Predictor

__all__ = ["ThreadChoice", "choose_threads", "measure_threads"]

_WORTH = 0.8
_STEPS, _SECONDS = 3, 2.0  # runs that are timed, and the time after which fewer of them do


@dataclass(frozen=True)
class ThreadChoice:
    """The predictor with the faster number of threads, and the seconds of an engine run for each number."""

    predictor: Predictor
    threads: int
    seconds: Mapping[int, float]


def choose_threads(seconds: Mapping[int, float]) -> int:
    """The number of threads whose steps are fastest; the largest one unless another saves a fifth of its time.

    Results differ in their last bits with the number of threads, so the usual one is given up for a reason only.
    """
    most = max(seconds)
    best = min(seconds, key=lambda threads: seconds[threads])
    return best if seconds[best] < _WORTH * seconds[most] else most


def measure_threads(usual: Predictor, single: Callable[[], Predictor]) -> ThreadChoice | None:
    """Time the engine of `usual`, with a thread for each core, and that of the one with a single thread.

    None where there is no choice: on one core, or on a GPU.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores < 2 or usual.engine.device != "cpu":
        return None
    found = {cores: usual, 1: single()}
    seconds = {threads: _time(predictor) for threads, predictor in found.items()}
    chosen = choose_threads(seconds)
    return ThreadChoice(found[chosen], chosen, seconds)


def _time(predictor: Predictor) -> float:
    """The median of a few engine runs after one that allocates; a single one if that takes long."""
    images = np.full((predictor.batch, *predictor.card.input.shape), 0.5, dtype=np.float32)
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) <= _STEPS and not (times and time.perf_counter() - begun > _SECONDS):
        started = time.perf_counter()
        predictor.engine.scores(images)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:] or times)
