"""The scheduler: the same votes however the work is cut, no lost sample, deadlines and stop signals."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest

from robustinfer import Card, InputSpec, Predictor, Request, RobustinferError, jobs, scheduler
from robustinfer.crew import Crew, Pace
from robustinfer.errors import ClassCountError, PixelRangeError, SampleSizeError
from robustinfer.jobs import Job
from robustinfer.questions import Question
from robustinfer.smoothing.tally import count_votes

from ..waiting import PATIENCE

IMAGES = np.random.default_rng(0).integers(90, 170, size=(12, 1, 2, 2), dtype=np.uint8)
SEEDS = list(range(100, 112))
SETTINGS: dict[str, dict[str, Any]] = {
    "fixed": {"n": 500},
    "same-sample": {"n": 500, "n0": 0},
    "radius": {"n": 2000, "radius": 0.05},
    "tolerance": {"n": 2000, "tolerance": 0.05},
}


def essence(certificate: Any) -> Any:
    """A certificate without the time it took."""
    return {key: value for key, value in certificate.to_json().items() if key != "seconds"}


@pytest.mark.parametrize("procedure", SETTINGS)
def test_certificates_do_not_depend_on_the_batch_or_on_neighbours(
    procedure: Any, predictor_of: Callable[..., Predictor], half_space: Callable[..., Any]
) -> None:
    alone = predictor_of(half_space, batch=64)
    one_by_one = [essence(alone.certify(x, seed=s, **SETTINGS[procedure])) for x, s in zip(IMAGES, SEEDS, strict=True)]
    for batch in (7, 64, 5000):
        many = predictor_of(half_space, batch=batch).certify_many(IMAGES, seeds=SEEDS, **SETTINGS[procedure])
        assert [essence(c) for c in many] == one_by_one


def test_requests_of_all_kinds_share_batches(
    predictor_of: Callable[..., Predictor], half_space: Callable[..., Any]
) -> None:
    predictor = predictor_of(half_space, batch=1000)
    requests = [
        Request(image=IMAGES[0], mode="predict", seed=1),
        Request(image=IMAGES[1], n=300, seed=2),
        Request(image=IMAGES[2], n=4000, radius=0.02, seed=3),
        Request(image=IMAGES[3], n=4000, tolerance=0.05, seed=4),
    ]
    answers = predictor.answer_many(requests)
    assert predictor.engine.batches[0] > 4 * 100  # type: ignore[attr-defined]  # samples of all four
    alone = predictor_of(half_space, batch=64)
    assert [essence(a) for a in answers] == [essence(alone.answer_many([r])[0]) for r in requests]


def test_noise_does_not_depend_on_the_threads_that_draw_it() -> None:
    """Images large enough for several threads: the buffer is the same, whoever fills which part."""
    card = Card(classes=("a", "b"), input=InputSpec(3, 40, 40), sigma=0.25)
    images = np.random.default_rng(1).integers(0, 256, size=(3, 3, 40, 40), dtype=np.uint8)
    jobs = [Job(Request(image=image, seed=seed).ask(card)) for seed, image in enumerate(images)]
    pieces = [(jobs[0], 0, 30), (jobs[1], 17, 55), (jobs[2], 4, 1)]
    buffers = [np.zeros((100, 3, 40, 40), dtype=np.float32) for _ in range(3)]
    assert [Crew(threads).draw(pieces, buffer) for threads, buffer in zip((1, 2, 5), buffers, strict=True)] == [86] * 3
    assert np.array_equal(buffers[0], buffers[1])
    assert np.array_equal(buffers[0], buffers[2])
    assert buffers[0][85].any()
    assert not buffers[0][86:].any()


def test_noise_waits_for_no_thread_that_is_busy_elsewhere() -> None:
    """What no thread has begun, the caller draws itself: pieces of several jobs are not of one size."""
    card = Card(classes=("a", "b"), input=InputSpec(3, 40, 40), sigma=0.25)
    images = np.random.default_rng(1).integers(0, 256, size=(2, 3, 40, 40), dtype=np.uint8)
    jobs = [Job(Request(image=image, seed=seed).ask(card)) for seed, image in enumerate(images)]
    pieces = [(jobs[0], 0, 2), (jobs[1], 0, 60)]
    expected, found = (np.zeros((62, 3, 40, 40), dtype=np.float32) for _ in range(2))
    Crew(1).draw(pieces, expected)
    crew, release = Crew(2), threading.Event()
    assert crew._pool is not None
    busy = crew._pool.submit(release.wait, PATIENCE)
    try:
        assert crew.draw(pieces, found) == 62
        assert not busy.done()
    finally:
        release.set()
    assert np.array_equal(found, expected)


class Refusing(ThreadPoolExecutor):
    """Has one thread, which is busy until the pool is shut down, and cannot start another for its second task."""

    def __init__(self) -> None:
        super().__init__(1)
        self.release = threading.Event()
        self.futures: list[Future[Any]] = []
        super().submit(self.release.wait, PATIENCE)

    def submit(self, *task: Any, **named: Any) -> Any:
        self.futures.append(super().submit(*task, **named))
        if len(self.futures) == 2:
            raise RuntimeError("can't start new thread")
        return self.futures[-1]

    def shutdown(self, *how: Any, **named: Any) -> None:
        self.release.set()
        super().shutdown(*how, **named)


def test_noise_is_whole_where_threads_cannot_be_had() -> None:
    """What the pool queued and refused is settled before the caller draws it: nobody else writes where it does."""
    card = Card(classes=("a", "b"), input=InputSpec(3, 40, 40), sigma=0.25)
    images = np.random.default_rng(1).integers(0, 256, size=(4, 3, 40, 40), dtype=np.uint8)
    pieces = [(Job(Request(image=image, seed=seed).ask(card)), 0, 20) for seed, image in enumerate(images)]
    expected, found, again = (np.zeros((80, 3, 40, 40), dtype=np.float32) for _ in range(3))
    Crew(1).draw(pieces, expected)
    crew = Crew(4)
    crew._pool = pool = Refusing()
    try:
        assert crew.draw(pieces, found) == 80
        assert len(pool.futures) == 2
        assert all(future.done() for future in pool.futures)
        assert crew.draw(pieces, again) == 80, "later runs do without other threads"
    finally:
        pool.shutdown()
    assert np.array_equal(found, expected)
    assert np.array_equal(again, expected)


def test_nobody_draws_into_the_buffer_after_a_draw_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run has the same buffer. The straggler is released by whoever waits for it."""
    card = Card(classes=("a", "b"), input=InputSpec(3, 40, 40), sigma=0.25)
    images = np.random.default_rng(1).integers(0, 256, size=(2, 3, 40, 40), dtype=np.uint8)
    pieces = [(Job(Request(image=image, seed=seed).ask(card)), 0, 30) for seed, image in enumerate(images)]
    begun, release = threading.Event(), threading.Event()
    order: list[str] = []
    draw = Question.begin_draw

    def straggle(*task: Any) -> Any:
        begun.set()
        release.wait(PATIENCE)
        order.append("drawn")
        return draw(*task)

    def fail(*task: Any) -> None:
        begun.wait(PATIENCE)
        raise MemoryError

    def settle(futures: Any) -> Any:
        release.set()
        return wait(futures)

    monkeypatch.setattr(Question, "begin_draw", straggle)
    monkeypatch.setattr(Question, "draw", fail)
    monkeypatch.setattr("robustinfer.crew.wait", settle)
    try:
        with pytest.raises(MemoryError):
            Crew(2).draw(pieces, np.zeros((60, 3, 40, 40), dtype=np.float32))
        order.append("left")
    finally:
        release.set()
    assert order == ["drawn", "left"]


def test_every_run_but_the_last_is_full(predictor_of: Callable[..., Predictor], half_space: Callable[..., Any]) -> None:
    predictor = predictor_of(half_space, batch=256)
    list(predictor.certify_many(IMAGES, n=300, n0=0))
    assert predictor.engine.batches == [256] * (12 * 300 // 256) + [12 * 300 % 256]  # type: ignore[attr-defined]


def test_images_are_read_only_as_they_are_needed(
    predictor_of: Callable[..., Predictor], half_space: Callable[..., Any]
) -> None:
    read: list[int] = []

    def images() -> Iterator[Any]:
        for image in IMAGES:
            read.append(len(read))
            yield image

    answers = predictor_of(half_space, batch=100).certify_many(images(), n=200, n0=0)
    next(answers)
    assert len(read) <= 3


def test_a_bad_request_does_not_hurt_its_neighbours(
    predictor_of: Callable[..., Predictor], half_space: Callable[..., Any]
) -> None:
    predictor = predictor_of(half_space)
    bad_pixels = IMAGES[0].astype(np.float32)
    answers = predictor.answer_many(
        [
            Request(image=IMAGES[0], n=300, seed=5),
            Request(image=bad_pixels, n=300),
            Request(image=IMAGES[0], n=3),
            Request(image=IMAGES[0], n=300, seed=5),
        ]
    )
    assert isinstance(answers[1], PixelRangeError)
    assert isinstance(answers[2], SampleSizeError)
    assert essence(answers[0]) == essence(answers[3]) == essence(predictor.certify(IMAGES[0], n=300, seed=5))
    assert predictor.answer_many([]) == []
    assert all(isinstance(a, RobustinferError) for a in predictor.answer_many([Request(image="no")]))


def test_eight_threads_get_what_one_gets(
    predictor_of: Callable[..., Predictor], half_space: Callable[..., Any]
) -> None:
    predictor = predictor_of(half_space, batch=50)
    expected = [essence(predictor.certify(x, n=400, seed=s)) for x, s in zip(IMAGES, SEEDS, strict=True)]
    with ThreadPoolExecutor(8) as pool:
        jobs = [
            pool.submit(predictor.certify, x, n=400, seed=s)
            for _ in range(4)
            for x, s in zip(IMAGES, SEEDS, strict=True)
        ]
        assert [essence(job.result()) for job in jobs] == expected * 4


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_vote_against(
    predictor_of: Callable[..., Predictor], half_space: Callable[..., Any], poison: Any
) -> None:
    """Every third sample is poisoned, in the class that would win: it counts, but for no class."""
    position = [0]

    def scores(images: Any) -> Any:
        values = half_space(images)
        values[(np.arange(position[0], position[0] + len(images)) % 3) == 0, 1] = poison
        position[0] += len(images)
        return values

    bright = np.full((1, 2, 2), 255, dtype=np.uint8)
    certificate = predictor_of(scores).certify(bright, n=300, n0=0, seed=1)
    assert certificate.invalid == 100
    assert sum(certificate.counts) + certificate.invalid == 300
    clean = predictor_of(half_space).certify(bright, n=300, n0=0, seed=1)
    assert certificate.radius < clean.radius
    all_poisoned = predictor_of(lambda x: np.full((len(x), 2), poison)).certify(bright, n=300, seed=1)
    assert (all_poisoned.label, all_poisoned.radius, all_poisoned.invalid) == (None, 0.0, 300)


def test_votes_are_counted_with_ties_for_the_lower_label() -> None:
    scores = np.array([[1, 1, 0], [0, 2, 1], [np.nan, 5, 5], [3, np.inf, 0], [0, 0, 0]], dtype=np.float32)
    assert list(count_votes(scores)) == [2, 1, 0, 2]


@pytest.mark.parametrize("shape", [(3,), (-1, 3), (1, 2)])
def test_an_engine_that_loses_samples_is_refused(predictor_of: Callable[..., Predictor], shape: Any) -> None:
    """A graph with a frozen batch axis, or with another number of classes: never an endless wait."""

    def scores(images: Any) -> Any:
        return np.zeros(tuple(len(images) if size == -1 else size for size in shape))

    predictor = predictor_of(scores)
    with pytest.raises(ClassCountError, match=r"2 classes.*the graph gives"):
        predictor.certify(IMAGES[0], n=300)
    with pytest.raises(ClassCountError, match=r"2 classes.*the graph gives"):
        predictor.scores(IMAGES)


def test_an_engine_that_fails_ends_the_call(predictor_of: Callable[..., Predictor]) -> None:
    def scores(images: Any) -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        predictor_of(scores).certify(IMAGES[0], n=300)


class Clock:
    """A clock that goes only while an engine works, so that deadlines do not depend on what else the machine does."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> Any:
        return self.now

    def slows(self, function: Any, seconds_per_sample: Any) -> Any:
        def scores(images: Any) -> Any:
            self.now += seconds_per_sample * len(images)
            return function(images)

        return scores


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    clock = Clock()
    for module in (jobs, scheduler):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.mark.parametrize("seconds", [0.1, 0.4])
def test_a_deadline_is_kept(
    predictor_of: Callable[..., Predictor], half_space: Callable[..., Any], clock: Any, seconds: Any
) -> None:
    """A slow engine with a large batch: runs are cut to what fits."""
    predictor = predictor_of(clock.slows(half_space, 2e-4), batch=100_000)
    certificate = predictor.certify(np.full((1, 2, 2), 250, np.uint8), deadline=seconds, seed=1)
    assert certificate.stopped == "deadline"
    assert certificate.label == 1
    assert certificate.seconds == pytest.approx(seconds, abs=2e-4)  # one sample more than fits, at most
    assert certificate.samples_used < 100_000
    assert predictor.verify(certificate, np.full((1, 2, 2), 250, np.uint8)).ok


@pytest.mark.parametrize("batch", [64, 100, 1000])
@pytest.mark.parametrize("many", [True, False])
def test_images_under_one_deadline_get_equally_many_samples(
    predictor_of: Callable[..., Predictor], half_space: Callable[..., Any], clock: Any, batch: Any, many: Any
) -> None:
    predictor = predictor_of(clock.slows(half_space, 1e-4), batch=batch)
    images = [np.full((1, 2, 2), 250, np.uint8)] * 8
    asked = [Request(image=image, deadline=1.0) for image in images]
    alike: Any = predictor.certify_many(images, deadline=1.0, seed=1) if many else predictor.answer_many(asked)
    answers = list(alike)
    used = [answer.samples_used for answer in answers]
    if many and batch < 8 * 32:  # as many as fill a batch start together, and nobody joins them
        group = -(-batch // 32)
        used = used[:group]
    assert min(used) > 0.9 * max(used)
    assert {answer.stopped for answer in answers} == {"deadline"}
    assert all(answer.seconds <= 1.0 + 1e-4 * batch for answer in answers)


def test_a_deadline_comes_before_a_job_without_one(
    predictor_of: Callable[..., Predictor], half_space: Callable[..., Any], clock: Any
) -> None:
    predictor = predictor_of(clock.slows(half_space, 1e-4), batch=64)
    answers: list[Any] = predictor.answer_many(
        [Request(image=IMAGES[0], n=20_000), Request(image=np.full((1, 2, 2), 250, np.uint8), deadline=0.5)]
    )
    long, urgent = answers
    alone = predictor.certify(np.full((1, 2, 2), 250, np.uint8), deadline=0.5)
    assert urgent.samples_used > 0.9 * alone.samples_used
    assert (long.samples_used, long.stopped) == (20_100, "complete")


def test_a_deadline_that_is_over_at_once_gives_an_abstention(
    predictor_of: Callable[..., Predictor], half_space: Callable[..., Any]
) -> None:
    certificate = predictor_of(half_space).certify(IMAGES[0], deadline=1e-9)
    assert (certificate.label, certificate.samples_used, certificate.stopped) == (None, 0, "deadline")


def test_a_radius_under_a_deadline(
    predictor_of: Callable[..., Predictor], half_space: Callable[..., Any], clock: Any
) -> None:
    predictor = predictor_of(clock.slows(half_space, 1e-4))
    bright = np.full((1, 2, 2), 255, np.uint8)
    decided = predictor.certify(bright, radius=0.1, deadline=30)
    assert (decided.stopped, decided.procedure) == ("certified", "radius")
    assert predictor.certify(bright, radius=0.4999, deadline=0.2, n=10**6).stopped == "deadline"


@pytest.mark.parametrize(
    ("settings", "certified"), [({"radius": 0.49}, True), ({}, False), ({"deadline": PATIENCE}, True)]
)
def test_a_stop_signal_ends_the_work(
    predictor_of: Callable[..., Predictor], half_space: Callable[..., Any], settings: Any, certified: Any
) -> None:
    """What can be stopped at any moment gives the best certificate so far; a fixed n gives an abstention."""
    stop, runs = threading.Event(), [0]

    def scores(images: Any) -> Any:
        runs[0] += 1
        if runs[0] == 20:
            stop.set()
        return half_space(images)

    certificate = predictor_of(scores).certify(np.full((1, 2, 2), 255, np.uint8), stop=stop, n=10**6, **settings)
    assert certificate.stopped == "interrupted"
    assert runs[0] == 20
    assert (certificate.label == 1) == certified


def test_progress_counts_the_samples(predictor_of: Callable[..., Predictor], half_space: Callable[..., Any]) -> None:
    seen: list[int] = []
    certificate = predictor_of(half_space).certify(IMAGES[0], n=1000, progress=seen.append)
    assert sum(seen) == certificate.samples_used == 1025
    assert len(seen) > 5


def test_the_pace_fits_runs_into_the_time() -> None:
    pace = Pace()
    assert pace.fitting(1.0) == 32
    pace.learn(100, 1.0)
    assert 50 <= pace.fitting(1.0) <= 100
    assert pace.fitting(0.0) == 1
    pace.learn(100, 10.0)
    assert pace.fitting(1.0) <= 10
