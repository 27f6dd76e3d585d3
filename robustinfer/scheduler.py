"""The scheduler: fills engine batches with samples of many images, and gives the votes back to their procedures."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from .crew import Crew, Pace, Piece
from .engines import Engine
from .jobs import Job
from .sharing import Sharing
from .smoothing.estimates import Votes
from .voting import scores_of

__all__ = ["Board", "run"]


class Board:
    """The jobs that are on their way, and the engine runs that serve them. One thread at a time uses it.

    Jobs come and go between runs and end in any order. What a job answers does not depend on when it came, on its
    neighbours or on how the runs are cut: its samples are counted, and its procedure gets them in their order.
    """

    def __init__(self, engine: Engine, sharing: Sharing, *, batch: int, pace: Pace, crew: Crew) -> None:
        self.batch = batch
        self.samples = 0  # of all runs so far
        self._jobs: dict[Job, None] = {}  # in the order of arrival
        self._sharing = sharing
        self._engine, self._pace, self._crew = engine, pace, crew
        self._buffer: npt.NDArray[np.float32] | None = None

    @property
    def has_places(self) -> bool:
        """Whether another job may start: there is room, and nobody works against a clock whom it would slow down."""
        if any(job.drawn and job.question.deadline is not None for job in self._jobs):
            return False
        return sum(job.wanted for job in self._jobs) < self.batch

    def admit(self, job: Job) -> None:
        """The job has places from the next run on."""
        self._jobs[job] = None
        self._sharing.admit(job)

    def withdraw(self, job: Job) -> None:
        """The job has no further places."""
        del self._jobs[job]
        self._sharing.withdraw(job)

    def step(self) -> list[Job]:
        """One engine run, if there is work; returns the jobs that have ended."""
        for job in self._jobs:
            _guard(job, job.expire)
        ended = self._ended()
        if self._jobs:
            waiting = list(self._jobs)
            room = self._sharing.room(waiting, self.batch, self._pace)
            shares = self._sharing.share(waiting, room)
            self._run([(job, job.take(count), count) for job, count in shares.items() if count])
            ended += self._ended()
        return ended

    def _ended(self) -> list[Job]:
        ended = [job for job in self._jobs if job.done]
        for job in ended:
            self.withdraw(job)
        return ended

    def _run(self, pieces: list[Piece]) -> None:
        """Run the pieces together. If that fails, run each alone, so that only the guilty job does."""
        try:
            votes = self._votes(pieces)
        except Exception as error:
            if len(pieces) == 1:
                pieces[0][0].fail(error)
                return
            for piece in pieces:
                self._run([piece])
            return
        for (job, _, count), own in zip(pieces, votes, strict=True):
            self.samples += count
            _guard(job, partial(job.receive, own))

    def _votes(self, pieces: list[Piece]) -> list[Votes]:
        began = time.perf_counter()
        tally = pieces[0][0].question.tally
        if self._buffer is None:
            self._buffer = np.empty((self.batch, *pieces[0][0].question.image.shape), dtype=np.float32)
        end = self._crew.draw(pieces, self._buffer)
        scores = scores_of(self._engine, tally, self._buffer[:end])  # all jobs are of one model file
        self._pace.learn(end, time.perf_counter() - began)
        votes, start = [], 0
        for job, _, count in pieces:
            votes.append(job.question.tally.count(scores[start : start + count]))
            start += count
        return votes


def _guard(job: Job, action: Callable[[], None]) -> None:
    """An error in one job's procedure is that job's."""
    try:
        action()
    except Exception as error:
        job.fail(error)


def run(board: Board, jobs: Iterable[Job], *, progress: Callable[[int], None] | None = None) -> Iterator[Job]:
    """Run jobs to their end; yields them in the order they came.

    Jobs of a list, whose clocks run already, are all admitted at once; those of an iterator while places are empty.
    """
    waiting: deque[Job] = deque()
    at_once = isinstance(jobs, Sequence)
    coming = iter(jobs)
    exhausted = False
    while True:
        while not exhausted and (at_once or board.has_places):
            job = next(coming, None)
            if job is None:
                exhausted = True
            else:
                waiting.append(job)
                board.admit(job)
        before = board.samples
        board.step()
        if progress is not None and board.samples > before:
            progress(board.samples - before)
        while waiting and waiting[0].done:
            yield waiting.popleft()
        if exhausted and not waiting:
            return
