"""Answers on their way: futures for submitted requests, snapshots of their votes, and the thread that serves them."""

import asyncio
import dataclasses
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from .certificate import Certificate, Prediction, ProcedureName
from .errors import EngineError
from .jobs import Job, Seen
from .outbox import Outbox
from .questions import Question
from .scheduler import Board
from .settings import Mode
from .sharing import Fair, Sharing
from .smoothing.procedures import Outcome

__all__ = ["AnswerFuture", "Live", "Snapshot", "check_process"]

Result = Certificate | Prediction

_VALID_AT_EVERY_MOMENT = ("radius", "deadline")


@dataclass(frozen=True)
class Snapshot:
    """What is known of an answer on its way.

    `counts` and `invalid` are the votes so far, those on which the label is chosen excepted: the certificate's counts
    will contain them. `samples_used` counts all. The procedures radius and deadline have paid for all their looks in
    advance, so their `label` and `radius` so far hold as they stand: they are those of the certificate that would come
    out now (label None and radius 0 while nothing is proven). A running radius of another procedure would not be
    proven: `label`, `class_name` and `radius` are None there.
    """

    mode: Mode
    procedure: ProcedureName
    n: int
    samples_used: int
    counts: tuple[int, ...]
    invalid: int
    label: int | None
    class_name: str | None
    radius: float | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The snapshot as a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Snapshot":
        """Read a snapshot; fields that are not known are ignored."""
        known = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in document.items() if name in known}
        return cls(**values | {"counts": tuple(values["counts"])})


class AnswerFuture(Future[Result]):
    """The answer to a submitted request: a `concurrent.futures.Future`, and awaitable in any event loop.

    Until it is answered `cancel` succeeds, and so does cancelling a task that awaits it: from the next engine run on
    its places belong to others. Callbacks are called by the thread that serves all answers: keep them short.
    """

    def __init__(self, job: Job, answer: Callable[[Job], Result], classes: tuple[str, ...]) -> None:
        super().__init__()
        self.job = job
        self._answer = answer
        self._classes = classes
        self._known: tuple[int, Outcome] | None = None

    def __await__(self) -> Generator[Any, None, Result]:
        return self.in_loop().__await__()

    def in_loop(self) -> asyncio.Future[Result]:
        """The same answer as a future of the running event loop, for `asyncio.gather` and its like."""
        return Outbox.of_running_loop().expect(self)

    def snapshot(self) -> Snapshot:
        """What is known now."""
        job, seen = self.job, self.job.seen
        question = job.question
        chosen_on = 1 if question.n0 else 0  # wishes of the procedure that choose the label
        votes = sum(seen.complete[chosen_on:], start=np.zeros_like(seen.next))
        if len(seen.complete) >= chosen_on:
            votes = votes + seen.next
        row = votes[-1] if votes.ndim > 1 else votes
        label, radius = None, None
        if question.mode == "certify" and question.procedure in _VALID_AT_EVERY_MOMENT:
            outcome = self._so_far(seen)
            label, radius = outcome.label, outcome.radius
        return Snapshot(
            mode=question.mode,
            procedure=question.procedure,
            n=question.n,
            samples_used=sum(question.tally.samples(each) for each in (*seen.complete, seen.next)),
            counts=tuple(int(count) for count in row[:-1]),
            invalid=int(row[-1]),
            label=label,
            class_name=None if label is None else self._classes[label],
            radius=radius,
            seconds=round(job.seconds or time.perf_counter() - job.started, 6),
        )

    async def snapshots(self, interval: float = 0.1) -> AsyncIterator[Snapshot]:
        """A snapshot whenever votes have come in, at most one in `interval` seconds, until the answer is there."""
        loop, answered = asyncio.get_running_loop(), asyncio.Event()

        def wake(_: Future[Result]) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
                loop.call_soon_threadsafe(answered.set)

        self.add_done_callback(wake)
        last = -1
        while not self.done():
            snapshot = self.snapshot()
            if snapshot.samples_used != last:
                last = snapshot.samples_used
                yield snapshot
            with suppress(TimeoutError):
                await asyncio.wait_for(answered.wait(), interval)

    def deliver(self) -> None:
        """Answer, now that the job is done; for the thread that serves it."""
        if not self.set_running_or_notify_cancel():
            return
        try:
            answer = self._answer(self.job)
        except Exception as error:
            self.set_exception(error)
        else:
            self.set_result(answer)

    def _so_far(self, seen: Seen) -> Outcome:
        """What the procedure would answer if it were interrupted now: it is run again on the votes it has had."""
        known = self._known
        if known is None or known[0] != len(seen.complete):
            known = self._known = len(seen.complete), _interrupted(self.job.question, seen)
        return known[1]


def _interrupted(question: Question, seen: Seen) -> Outcome:
    procedure = question.begin()
    next(procedure)
    try:
        for votes in seen.complete:
            procedure.send(votes)
        procedure.send("interrupted")
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome
    raise AssertionError("a procedure went on after it was interrupted")


class Live:
    """Serves jobs of many threads in one, which lives while there are jobs: nothing is left behind by idleness."""

    def __init__(self, board: Callable[[Sharing], Board]) -> None:
        self._new_board = board
        self._lock = threading.Lock()
        self._arrived: list[Job] = []
        self._futures: dict[Job, AnswerFuture] = {}  # submitted and not yet answered
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def outstanding(self) -> int:
        """How many are not answered yet."""
        return len(self._futures)

    def submit(self, future: AnswerFuture) -> AnswerFuture:
        """Serve its job from the next run on."""
        with self._lock:
            if self._closed:
                raise EngineError("This predictor is closed: load the model file again.")
            self._futures[future.job] = future
            self._arrived.append(future.job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="robustinfer-live")
                self._thread.start()
        return future

    def close(self, *, cancel: bool) -> None:
        """Take no more jobs; wait for those that are there, or cancel them."""
        with self._lock:
            self._closed = True
            thread, futures = self._thread, list(self._futures.values())
        if cancel:
            for future in futures:
                future.cancel()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _serve(self) -> None:
        """Run after run, until nothing is left."""
        board = self._new_board(Fair())
        try:
            while self._take_in(board):
                for job in board.step():
                    self._forget(job).deliver()
        except BaseException as error:  # nobody may wait for ever
            self._give_up(error)
            raise

    def _take_in(self, board: Board) -> bool:
        """Admit who has come, drop who was cancelled; whether anything is left to do."""
        with self._lock:
            arrived, self._arrived = self._arrived, []
            futures = list(self._futures.items())
            if not futures:
                self._thread = None
                return False
        for job in arrived:
            board.admit(job)
        for job, future in futures:
            if future.cancelled():
                board.withdraw(job)
                self._forget(job).set_running_or_notify_cancel()
        return True

    def _forget(self, job: Job) -> AnswerFuture:
        with self._lock:
            return self._futures.pop(job)

    def _give_up(self, error: BaseException) -> None:
        with self._lock:
            futures, self._futures, self._arrived, self._thread = self._futures, {}, [], None
        for future in futures.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineError(f"The engine's thread ended: {error!r}."))


def check_process(owner: int) -> None:
    """Refuse to work in a process that was forked from the predictor's: the threads of its engine are not there."""
    if os.getpid() != owner:
        raise EngineError(
            f"This predictor was loaded by the process {owner}, and this is a fork of it, {os.getpid()}: "
            "load the model file in each process."
        )
