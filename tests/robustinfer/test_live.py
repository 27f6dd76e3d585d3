"""Submitted requests: the same answers whatever the neighbours, snapshots, cancellation, errors, threads."""

import asyncio
import copy
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from typing import Any

import numpy as np
import pytest

from robustinfer import AnswerFuture, Card, CardMember, InputSpec, Predictor, Request, Snapshot
from robustinfer.crew import Crew, Pace
from robustinfer.errors import EngineError, SampleSizeError
from robustinfer.jobs import Job
from robustinfer.scheduler import Board
from robustinfer.sharing import Fair

from ..waiting import PATIENCE, eventually

IMAGES = np.random.default_rng(0).integers(90, 170, size=(12, 1, 2, 2), dtype=np.uint8)
BRIGHT = np.full((1, 2, 2), 255, np.uint8)

MakePredictor = Callable[..., Predictor]


def essence(answer: Any) -> Any:
    """An answer without the time it took."""
    return {key: value for key, value in answer.to_json().items() if key != "seconds"}


class Gate:
    """Scores that wait in the first run until the gate is opened, so that a test decides what happens meanwhile."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self, images: Any) -> Any:
        self.entered.set()
        assert self.opened.wait(250)
        return self._function(images)


@pytest.fixture
def gate(half_space: Callable[..., Any]) -> Gate:
    return Gate(half_space)


def test_futures_have_the_answers_of_calls(predictor_of: MakePredictor, half_space: Callable[..., Any]) -> None:
    predictor = predictor_of(half_space)
    requests = [
        Request(image=IMAGES[0], mode="predict", seed=1),
        Request(image=IMAGES[1], n=700, seed=2),
        Request(image=IMAGES[2], n=4000, radius=0.02, seed=3),
        Request(image=IMAGES[3], n=4000, tolerance=0.05, seed=4),
    ]
    futures = [predictor.submit(request, client=f"client {place % 2}") for place, request in enumerate(requests)]
    assert [essence(future.result(PATIENCE)) for future in futures] == [
        essence(a) for a in predictor.answer_many(requests)
    ]
    assert all(future.done() and not future.cancel() for future in futures)


def test_a_short_job_overtakes_a_long_one(predictor_of: MakePredictor, gate: Gate) -> None:
    predictor = predictor_of(gate, batch=64)
    long = predictor.submit(Request(image=IMAGES[0], n=10**9), client="greedy")
    assert gate.entered.wait(250)
    short = predictor.submit(Request(image=BRIGHT, mode="predict", n=100))
    gate.opened.set()
    try:
        assert next(as_completed([long, short], timeout=250)) is short
        assert not long.done()
    finally:
        assert long.cancel()


def test_a_bad_request_is_refused_at_once(predictor_of: MakePredictor, half_space: Callable[..., Any]) -> None:
    predictor = predictor_of(half_space)
    with pytest.raises(SampleSizeError, match="cannot certify"):
        predictor.submit(Request(image=IMAGES[0], n=3))
    assert predictor.outstanding == 0


def test_the_thread_lives_while_there_is_work(predictor_of: MakePredictor, half_space: Callable[..., Any]) -> None:
    before = set(threading.enumerate())
    with predictor_of(half_space) as predictor:
        for _ in range(3):
            assert predictor.submit(Request(image=BRIGHT, mode="predict", n=100)).result(PATIENCE).label == 1
    live = [thread for thread in set(threading.enumerate()) - before if thread.name == "robustinfer-live"]
    for thread in live:  # which has nothing left to do, and may be about to end
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in live)
    with pytest.raises(EngineError, match="closed"):
        predictor.submit(Request(image=BRIGHT, mode="predict", n=100))
    assert predictor.predict(BRIGHT, n=100).label == 1  # calls need no thread


def test_close_waits_for_answers_or_cancels_them(predictor_of: MakePredictor, gate: Gate) -> None:
    predictor = predictor_of(gate)
    futures = [predictor.submit(Request(image=image, n=300)) for image in IMAGES]
    assert gate.entered.wait(250)
    closing = threading.Thread(target=predictor.close)
    closing.start()
    assert not any(future.done() for future in futures)
    gate.opened.set()
    closing.join(250)
    assert all(future.done() and not future.cancelled() for future in futures)
    predictor.close()

    other = predictor_of(gate)
    futures = [other.submit(Request(image=image, n=10**9)) for image in IMAGES]
    other.close(cancel=True)
    assert all(future.cancelled() for future in futures)
    assert other.outstanding == 0


def test_cancellation_frees_the_places_from_the_next_run_on(predictor_of: MakePredictor, gate: Gate) -> None:
    predictor = predictor_of(gate, batch=64)
    long = predictor.submit(Request(image=IMAGES[0], n=10**6))
    assert gate.entered.wait(250)
    fine = predictor.submit(Request(image=IMAGES[1], n=1000, n0=0, seed=3))
    assert long.cancel()
    gate.opened.set()
    assert fine.result(PATIENCE).samples_used == 1000
    assert sum(predictor.engine.batches) == predictor.engine.batches[0] + 1000  # type: ignore[attr-defined]
    with pytest.raises(CancelledError):
        long.result(PATIENCE)
    assert long.cancelled()


def test_await_gather_and_cancelled_tasks(predictor_of: MakePredictor, half_space: Callable[..., Any]) -> None:
    predictor = predictor_of(half_space)

    async def main() -> list[Any]:
        answers = await asyncio.gather(*(predictor.submit(Request(image=x, n=300, seed=1)) for x in IMAGES))
        endless = predictor.submit(Request(image=IMAGES[0], n=10**9))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(endless, 0.01)
        assert endless.cancelled()
        return answers

    assert [essence(a) for a in asyncio.run(main())] == [essence(predictor.certify(x, n=300, seed=1)) for x in IMAGES]
    predictor.close()
    assert predictor.outstanding == 0


def test_stop_gives_the_best_so_far(predictor_of: MakePredictor, half_space: Callable[..., Any]) -> None:
    predictor, stop = predictor_of(half_space), threading.Event()
    # The radius is 0.5: to prove so much of it would take a thousand million samples, and all the time there is.
    future = predictor.submit(Request(image=BRIGHT, n=10**9, radius=0.4999), stop=stop)
    try:
        eventually(lambda: bool(future.snapshot().radius))
    finally:
        stop.set()
    answer: Any = future.result(PATIENCE)
    assert answer.stopped == "interrupted"
    assert answer.label == 1


def test_an_engine_that_fails_fails_the_guilty_job_only(
    predictor_of: MakePredictor, half_space: Callable[..., Any]
) -> None:
    """Bright images are too much for it; their neighbours are asked again without them."""

    def scores(images: Any) -> Any:
        if images.mean(axis=(1, 2, 3)).max() > 1.2:
            raise RuntimeError("out of memory")
        return half_space(images)

    predictor = predictor_of(scores, batch=256)
    futures = [predictor.submit(Request(image=x, n=3000, seed=9)) for x in (IMAGES[0], BRIGHT, IMAGES[1])]
    with pytest.raises(RuntimeError, match="out of memory"):
        futures[1].result(PATIENCE)
    alone = predictor_of(half_space)
    for future, image in ((futures[0], IMAGES[0]), (futures[2], IMAGES[1])):
        assert essence(future.result(PATIENCE)) == essence(alone.certify(image, n=3000, seed=9))


def test_misuse_across_processes_is_refused_with_a_sentence(
    predictor_of: MakePredictor, half_space: Callable[..., Any]
) -> None:
    predictor = predictor_of(half_space)
    for misuse in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(EngineError, match="load the model file in each process"):
            misuse(predictor)
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (lambda: predictor.submit(Request(image=BRIGHT)), lambda: predictor.certify(BRIGHT)):
            try:
                use()
            except EngineError as error:
                refused += "this is a fork" in str(error)
        predictor.close()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


def votes_predictor(function: Callable[[Any], Any]) -> Predictor:
    """Three members that vote, whose scores are those of one function under other signs of the margin."""
    members = tuple(CardMember("linear", beta, stage) for stage, beta in enumerate((1.0, 2.0, 0.5), start=1))
    card = Card(classes=("a", "b"), input=InputSpec(1, 2, 2), sigma=0.25, kind="votes", members=members)

    class Engine:
        name, device, batch = "three functions", "cpu", 64

        def scores(self, images: Any) -> Any:
            scores = function(images)
            return np.stack([scores, scores, scores[:, ::-1]], axis=1)

    return Predictor(Engine(), card)


@pytest.mark.parametrize("votes_file", [False, True])
@pytest.mark.parametrize("settings", [{"radius": 0.27}, {"deadline": 86_400.0}], ids=["radius", "deadline"])
def test_a_running_radius_is_that_of_the_certificate_that_would_come_out_now(
    predictor_of: MakePredictor, half_space: Callable[..., Any], votes_file: bool, settings: Any
) -> None:
    """A job is moved on by hand; after each run another one is interrupted at the same sample."""
    predictor = votes_predictor(half_space) if votes_file else predictor_of(half_space)
    card = predictor.card
    radii: list[float] = []
    request = Request(image=np.full((1, 2, 2), 200, np.uint8), n=3000, seed=5, **settings)
    future = AnswerFuture(Job(request.ask(card)), lambda job: pytest.fail("not asked for"), card.classes)
    watched = Board(predictor.engine, Fair(), batch=64, pace=Pace(), crew=Crew(1))
    watched.admit(future.job)
    for runs in range(12):
        seen, stop = future.snapshot(), threading.Event()
        other = Job(request.ask(card), stop)
        board = Board(predictor.engine, Fair(), batch=64, pace=Pace(), crew=Crew(1))
        board.admit(other)
        for _ in range(runs):
            board.step()
        stop.set()
        assert board.step() == [other]
        assert other.outcome is not None
        assert (seen.label, seen.radius) == (other.outcome.label, other.outcome.radius)
        assert seen.class_name == (None if seen.label is None else card.classes[seen.label])
        assert seen.samples_used == other.drawn == watched.samples
        assert sum(seen.counts) + seen.invalid == max(0, seen.samples_used - future.job.question.n0)
        radii.append(seen.radius or 0.0)
        watched.step()
    assert radii == sorted(radii)
    assert radii[0] == 0.0 < radii[-1]


@pytest.mark.parametrize(
    "settings", [{}, {"n0": 0}, {"tolerance": 0.05}, {"mode": "predict"}], ids=["fixed", "same", "tolerance", "predict"]
)
def test_no_radius_is_shown_where_it_would_not_be_proven(
    predictor_of: MakePredictor, half_space: Callable[..., Any], settings: Any
) -> None:
    predictor = predictor_of(half_space, batch=32)

    async def watch() -> tuple[list[Snapshot], Any]:
        future = predictor.submit(Request(image=np.full((1, 2, 2), 129, np.uint8), n=20_000, seed=1, **settings))
        seen = [snapshot async for snapshot in future.snapshots(interval=0.0)]
        return [*seen, future.snapshot()], await future

    seen, answer = asyncio.run(watch())
    assert {(one.label, one.class_name, one.radius) for one in seen} == {(None, None, None)}
    watched = [one.samples_used for one in seen[:-1]]
    assert watched == sorted(set(watched))
    assert max(watched, default=0) <= seen[-1].samples_used  # equal, if seen just before it was answered
    assert (seen[-1].counts, seen[-1].samples_used) == (answer.counts, answer.samples_used)
    assert seen[-1].to_json()["procedure"] == ("tolerance" if "tolerance" in settings else "fixed")


@pytest.mark.slow
def test_many_threads_with_cancellations_and_closing(
    predictor_of: MakePredictor, half_space: Callable[..., Any]
) -> None:
    """What is not cancelled has the answer of a call, whichever threads ask for it at once."""
    with predictor_of(half_space, batch=200) as predictor:
        kinds: list[dict[str, Any]] = [{"n": 400}, {"n": 5000}, {"mode": "predict"}, {"radius": 0.05, "n": 2000}]
        requests = [Request(image=IMAGES[k % 12], seed=k, **kinds[k % 4]) for k in range(60)]

        def ask(thread: int) -> list[Any]:
            futures = [predictor.submit(request, client=str(thread % 3)) for request in requests]
            for future in futures[thread::7]:
                future.cancel()
            return [None if future.cancelled() else essence(future.result(PATIENCE)) for future in futures]

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(8)))
        expected = [essence(answer) for answer in predictor.answer_many(requests)]
        for own in answers:
            assert [one for one in own if one is not None] == [
                there for one, there in zip(own, expected, strict=True) if one is not None
            ]
    assert predictor.outstanding == 0


SCRIPT = """
import numpy as np
from robustinfer import Card, InputSpec, Predictor, Request

class Engine:
    name, device, batch = "a function", "cpu", 512
    def scores(self, images):
        margin = images.reshape(len(images), -1)[:, 0] - np.float32(0.5)
        return np.stack([-margin, margin], axis=1)

card = Card(classes=("a", "b"), input=InputSpec(1, 32, 32), sigma=0.25)
future = Predictor(Engine(), card, threads=2).submit(Request(image=np.full((1, 32, 32), 255, np.uint8), n=20_000))
future.add_done_callback(lambda future: print(future.result().label))
"""


def test_a_program_ends_when_its_answers_are_there() -> None:
    """As with executors: the interpreter waits for what was submitted, and nothing keeps it alive afterwards."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
