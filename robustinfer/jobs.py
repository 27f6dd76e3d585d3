"""A job: one question on its way, from its first sample to its outcome."""

import itertools
import threading
import time
from dataclasses import dataclass

import numpy as np

from .questions import Question
from .smoothing.estimates import Votes
from .smoothing.procedures import Outcome

__all__ = ["Job", "Seen"]

_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Seen:
    """The votes that have come back: those of each of the procedure's wishes that are fulfilled, then of the next."""

    complete: tuple[Votes, ...]
    next: Votes


class Job:
    """One question on its way: its procedure, the samples it waits for, the votes it has got.

    One thread at a time moves a job on; any thread may look at what it has `seen`.
    """

    def __init__(self, question: Question, stop: threading.Event | None = None, *, client: str = "") -> None:
        self.question = question
        self.client = client
        self.number = next(_NUMBERS)  # in the order of arrival
        self.outcome: Outcome | None = None
        self.error: Exception | None = None
        self.drawn = 0  # samples assigned so far; also the index of the next one
        self.started = time.perf_counter()
        self.seconds = 0.0
        self._stop = stop
        self._procedure = question.begin()
        self.wanted = next(self._procedure)  # samples not yet assigned
        self._missing = self.wanted  # samples whose votes have not come back
        self.seen = Seen((), question.tally.empty())  # replaced as a whole, never changed

    @property
    def done(self) -> bool:
        """Whether it has an outcome or an error."""
        return self.outcome is not None or self.error is not None

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
        arrived = self.seen.next + votes
        self._missing -= self.question.tally.samples(votes)
        if self._missing == 0:
            self.seen = Seen((*self.seen.complete, arrived), np.zeros_like(arrived))
            self._send(arrived)
        else:
            self.seen = Seen(self.seen.complete, arrived)

    def expire(self) -> None:
        """End the job with its best valid outcome, if its time is over or somebody asked it to stop."""
        if not self.done:
            if self._stop is not None and self._stop.is_set():
                self._send("interrupted")
            elif (left := self.time_left) is not None and left <= 0:
                self._send("deadline")

    def fail(self, error: Exception) -> None:
        """End the job with an error."""
        self.error = error
        self.wanted = 0

    def _send(self, answer: Votes | str) -> None:
        try:
            self.wanted = self._missing = self._procedure.send(answer)
        except StopIteration as end:
            self.outcome = end.value
            self.wanted = 0
            self.seconds = time.perf_counter() - self.started
