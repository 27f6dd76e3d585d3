"""Who does the work of an engine run: the threads that draw its noise, and what is known of the engine's speed."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import numpy.typing as npt

from .jobs import Job
from .questions import Question

__all__ = ["Crew", "Pace", "Piece"]

_FIRST_RUN = 32  # samples that fit into any time, as long as the engine's speed is not known
_MARGIN = 0.8  # share of the time left that a run under a deadline may take
_WORTH_A_THREAD = 1 << 16  # values of noise: drawing fewer takes less time than waking a thread

Piece = tuple[Job, int, int]  # samples of one run: whose they are, the index of the first, their number
Task = tuple[Question, int, npt.NDArray[np.float32]]  # part of a piece: the question, the first sample, where they go


class Pace:
    """How fast the engine is, learnt from its runs; what fits into the time that is left."""

    def __init__(self) -> None:
        self._seconds_per_sample: float | None = None

    def learn(self, samples: int, seconds: float) -> None:
        """Remember the slower of the last run and a mean that forgets."""
        last = seconds / samples
        known = self._seconds_per_sample
        self._seconds_per_sample = last if known is None else max(last, 0.7 * known + 0.3 * last)

    def fitting(self, seconds: float) -> int:
        """The number of samples that fit into the time, at least one."""
        if self._seconds_per_sample is None:
            return _FIRST_RUN
        return max(1, int(_MARGIN * seconds / self._seconds_per_sample))


class Crew:
    """Who draws noise: the caller, while its engine waits, and other threads. The work may be cut anywhere: noise is
    counted."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = min(threads or _processors(), 8)
        self._pool = ThreadPoolExecutor(self._threads - 1, "robustinfer-noise") if self._threads > 1 else None

    def draw(self, pieces: list[Piece], buffer: npt.NDArray[np.float32]) -> int:
        """Fill the buffer with the noisy images of the pieces; returns their number."""
        total = sum(count for _, _, count in pieces)
        values = buffer[0].size
        share = max(-(-total // self._threads), -(-_WORTH_A_THREAD // values))
        tasks: list[Task] = []
        end = 0
        for job, first, count in pieces:
            for start in range(0, count, share):
                rows = min(share, count - start)
                tasks.append((job.question, first + start, buffer[end : end + rows]))
                end += rows
        others: list[tuple[Future[Callable[[], None]], Task]] = []
        try:
            if total * values > _WORTH_A_THREAD:
                self._hand_out(tasks[1:], others)
            for task in [tasks[0], *tasks[1 + len(others) :]]:
                Question.draw(*task)
            for other, task in reversed(others):
                if other.cancel():  # nobody has begun it: pieces of several jobs are not of one size
                    Question.draw(*task)
                else:
                    other.result()()
        finally:  # nobody may write into the buffer when the next run has it, whatever has failed in this one
            wait([other for other, _ in others if not other.cancel()])
        return end

    def _hand_out(self, tasks: list[Task], others: list[tuple[Future[Callable[[], None]], Task]]) -> None:
        """Give tasks to other threads, as many as they take: what is not among `others` then is left to the caller."""
        pool = self._pool
        if pool is None:
            return
        try:
            for task in tasks:
                others.append((pool.submit(Question.begin_draw, *task), task))
        except RuntimeError:
            # No thread can be started, or the interpreter ends while submitted jobs are still on their way. A pool may
            # have queued the very task it refused.
            self._pool = None
            pool.shutdown(wait=True, cancel_futures=True)


def _processors() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
