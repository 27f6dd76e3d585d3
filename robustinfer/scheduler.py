"""The scheduler: fills engine batches with samples of many images, and gives the votes back to their procedures."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from .engines import Engine
from .questions import Question
from .smoothing.estimates import Votes
from .smoothing.procedures import Outcome
from .voting import scores_of

__all__ = ["Crew", "Job", "Pace", "run"]

_FIRST_RUN = 32  # samples of the first run under a deadline, when the engine's speed is not known yet
_MARGIN = 0.8  # share of the time left that a run under a deadline may take
_WORTH_A_THREAD = 1 << 16  # values of noise: drawing fewer takes less time than waking a thread


class Job:
    """One question on its way: its procedure, the samples it waits for, the votes it has got."""

    def __init__(self, question: Question, stop: threading.Event | None = None) -> None:
        self.question = question
        self.outcome: Outcome | None = None
        self.drawn = 0  # samples assigned so far; also the index of the next one
        self.started = time.perf_counter()
        self.seconds = 0.0
        self._stop = stop
        self._votes = question.tally.empty()
        self._procedure = question.begin()
        self.wanted = next(self._procedure)  # samples not yet assigned
        self._missing = self.wanted  # samples whose votes have not come back

    @property
    def time_left(self) -> float | None:
        """Seconds until the deadline, or None without one."""
        if self.question.deadline is None:
            return None
        return self.started + self.question.deadline - time.perf_counter()

    def take(self, count: int) -> int:
        """Assign up to `count` samples; returns the index of the first."""
        first = self.drawn
        self.drawn += count
        self.wanted -= count
        return first

    def receive(self, votes: Votes) -> None:
        """Votes of assigned samples. When all wanted ones are there, the procedure resumes."""
        self._votes += votes
        self._missing -= self.question.tally.samples(votes)
        if self._missing == 0:
            complete, self._votes = self._votes, np.zeros_like(self._votes)
            self._send(complete)

    def expire(self) -> None:
        """End the job with its best valid outcome, if its time is over or somebody asked it to stop."""
        if self.outcome is None:
            if self._stop is not None and self._stop.is_set():
                self._send("interrupted")
            elif (left := self.time_left) is not None and left <= 0:
                self._send("deadline")

    def _send(self, answer: Votes | str) -> None:
        try:
            self.wanted = self._missing = self._procedure.send(answer)
        except StopIteration as end:
            self.outcome = end.value
            self.wanted = 0
            self.seconds = time.perf_counter() - self.started


Piece = tuple[Job, int, int]  # samples of one run: whose they are, the index of the first, their number


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
    """Threads that draw noise, while the engine waits for it. The work may be cut anywhere: noise is counted."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = min(threads or _processors(), 8)
        self._pool = ThreadPoolExecutor(self._threads, "robustinfer-noise") if self._threads > 1 else None

    def draw(self, pieces: list[Piece], buffer: npt.NDArray[np.float32]) -> int:
        """Fill the buffer with the noisy images of the pieces; returns their number."""
        total = sum(count for _, _, count in pieces)
        values = buffer[0].size
        share = max(-(-total // self._threads), -(-_WORTH_A_THREAD // values))
        tasks, end = [], 0
        for job, first, count in pieces:
            for start in range(0, count, share):
                rows = min(share, count - start)
                tasks.append((job.question, first + start, buffer[end : end + rows]))
                end += rows
        if self._pool is None or total * values <= _WORTH_A_THREAD:
            for task in tasks:
                Question.draw(*task)
        else:
            deque(self._pool.map(Question.draw, *zip(*tasks, strict=True)), maxlen=0)
        return end


def _processors() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(
    engine: Engine,
    jobs: Iterable[Job],
    *,
    batch: int,
    pace: Pace,
    crew: Crew,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Job]:
    """Run jobs to their end; yields them in the order they came.

    Jobs under a deadline have the engine to themselves, and share its batches equally. Of the others the first
    unfinished one is served first, and the rest of the batch goes to the next ones: a job whose procedure is waiting
    for a decision, or has ended, leaves its places to others. Jobs of a list, whose clocks run already, are all
    admitted at once; those of an iterator while places are empty.
    """
    waiting: deque[Job] = deque(jobs if isinstance(jobs, Sequence) else ())
    coming = iter(()) if isinstance(jobs, Sequence) else iter(jobs)
    buffer: npt.NDArray[np.float32] | None = None
    exhausted = False
    while True:
        while not exhausted and _has_places(waiting, batch):
            job = next(coming, None)
            if job is None:
                exhausted = True
            else:
                waiting.append(job)
        for job in waiting:
            job.expire()
        while waiting and waiting[0].outcome is not None:
            yield waiting.popleft()
        if not waiting:
            if exhausted:
                return
            continue
        pieces = _fill(waiting, _room(waiting, batch, pace))
        if not pieces:
            continue
        if buffer is None:
            buffer = np.empty((batch, *waiting[0].question.image.shape), dtype=np.float32)
        samples = _run_pieces(engine, pieces, buffer, pace, crew)
        if progress is not None:
            progress(samples)


def _has_places(waiting: deque[Job], batch: int) -> bool:
    """Whether another job may start: there is room, and nobody works against a clock whom it would slow down."""
    if any(job.drawn and job.outcome is None and job.question.deadline is not None for job in waiting):
        return False
    return sum(job.wanted for job in waiting) < batch


def _room(waiting: deque[Job], batch: int, pace: Pace) -> int:
    """Places of the next run: the batch, or fewer where a deadline is near."""
    left = [seconds for job in waiting if job.outcome is None and (seconds := job.time_left) is not None]
    return batch if not left else min(batch, pace.fitting(max(min(left), 0.0)))


def _fill(waiting: deque[Job], room: int) -> list[Piece]:
    """Assign places: (job, index of its first sample, number of samples)."""
    urgent = [job for job in waiting if job.wanted and job.question.deadline is not None]
    if urgent:  # samples of others would cost them time
        shares = zip(urgent, _shares(urgent, room), strict=True)
        return [(job, job.take(count), count) for job, count in shares if count]
    pieces = []
    for job in waiting:
        count = min(job.wanted, room)
        if count:
            pieces.append((job, job.take(count), count))
            room -= count
    return pieces


def _shares(jobs: list[Job], room: int) -> list[int]:
    """Equal shares of the room, and of what some jobs leave; odd places go to whoever has drawn least so far."""
    shares = [0] * len(jobs)
    # Whoever wants least comes first, so that what it leaves is known; the last one gets the odd places.
    order = sorted(range(len(jobs)), key=lambda index: (jobs[index].wanted, -jobs[index].drawn))
    for position, index in enumerate(order):
        shares[index] = min(jobs[index].wanted, room // (len(order) - position))
        room -= shares[index]
    return shares


def _run_pieces(engine: Engine, pieces: list[Piece], buffer: npt.NDArray[np.float32], pace: Pace, crew: Crew) -> int:
    began = time.perf_counter()
    end = crew.draw(pieces, buffer)
    scores = scores_of(engine, pieces[0][0].question.tally, buffer[:end])  # all jobs are of one model file
    pace.learn(end, time.perf_counter() - began)
    start = 0
    for job, _, count in pieces:
        job.receive(job.question.tally.count(scores[start : start + count]))
        start += count
    return end
