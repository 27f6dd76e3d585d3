"""Fair shares: what `sharing.py` promises, under random arrivals, clients, cancellations and batch sizes."""

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustinfer import Card, InputSpec, Request
from robustinfer.crew import Crew, Pace
from robustinfer.jobs import Job
from robustinfer.scheduler import Board, run
from robustinfer.sharing import LEAST, QUIET, SHORT, SLICE, TURN, Fair, InOrder

CARD = Card(classes=("a", "b"), input=InputSpec(1, 2, 2), sigma=0.25)
IMAGES = np.random.default_rng(0).integers(90, 170, size=(4, 1, 2, 2), dtype=np.uint8)
KINDS: dict[str, dict[str, Any]] = {
    "predict": {"mode": "predict", "n": 1000},
    "fixed": {"n": 500},
    "same-sample": {"n": 300, "n0": 0},
    "long": {"n": 3000},
    "radius": {"n": 2000, "radius": 0.05},
    "tolerance": {"n": 2000, "tolerance": 0.05},
    "deadline": {"n": 1500, "deadline": 86_400.0},  # its n samples are there before: the same in every run
}


class Bright:
    """The class is whether the first pixel is bright."""

    name, device, batch = "bright", "cpu", 64

    def scores(self, images: Any) -> Any:
        margin = images.reshape(len(images), -1)[:, :1] - np.float32(0.5)
        return np.concatenate([-margin, margin], axis=1)


def board(batch: int, sharing: Any) -> Board:
    return Board(Bright(), sharing, batch=batch, pace=Pace(), crew=Crew(1))


def job(client: str, kind: str = "", seed: int = 0, **request: Any) -> Job:
    question = Request(image=IMAGES[seed % 4], seed=seed, **(KINDS[kind] if kind else request))
    return Job(question.ask(CARD), client=client)


def endless(client: str) -> Job:
    """A job that always wishes for more."""
    return job(client, n=10**9, n0=0)


def short(client: str) -> Job:
    return job(client, mode="predict", n=100)


def found(job: Job) -> Any:
    """What a job has found, in comparable values."""
    assert job.outcome is not None
    return {**vars(job.outcome), "counts": job.outcome.counts.tolist()}


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, int], Any]:
    """What each job finds when it has an engine to itself."""
    jobs = {(kind, seed): job("", kind, seed) for kind in KINDS for seed in range(4)}
    for one in jobs.values():
        assert list(run(board(64, InOrder()), iter([one]))) == [one]
    return {name: found(one) for name, one in jobs.items()}


ARRIVAL = st.tuples(st.just("arrive"), st.sampled_from(list(KINDS)), st.integers(0, 3), st.sampled_from("abc"))
CANCELLATION = st.tuples(st.just("cancel"), st.integers(0, 30), st.none(), st.none())
RUNS = st.tuples(st.just("run"), st.integers(1, 8), st.none(), st.none())


@settings(max_examples=60)
@given(st.integers(1, 400), st.lists(st.one_of(ARRIVAL, ARRIVAL, CANCELLATION, RUNS), max_size=40))
def test_whoever_comes_and_goes_the_same_seed_has_the_same_outcome(
    alone: dict[tuple[str, int], Any], batch: int, events: Any
) -> None:
    batch = max(batch, 20)  # smaller ones are as good, and slow
    shared = board(batch, Fair())
    names: dict[Job, tuple[str, int]] = {}
    open_jobs: list[Job] = []
    for event, what, seed, client in events:
        if event == "arrive":
            one = job(client, what, seed)
            names[one] = what, seed
            open_jobs.append(one)
            shared.admit(one)
        elif event == "cancel" and what < len(open_jobs):
            gone = open_jobs.pop(what)
            shared.withdraw(gone)
            del names[gone]
        elif event == "run":
            for _ in range(what):
                for ended in shared.step():
                    open_jobs.remove(ended)
    while open_jobs:
        for ended in shared.step():
            open_jobs.remove(ended)
    assert {one: found(one) for one in names} == {one: alone[name] for one, name in names.items()}
    assert shared.step() == []


@settings(max_examples=40)
@given(st.lists(st.integers(1, 3), min_size=2, max_size=5), st.lists(st.integers(1, 600), min_size=20, max_size=60))
def test_clients_and_their_jobs_get_equal_parts(jobs_of: list[int], rooms: list[int]) -> None:
    fair = Fair()
    jobs = [endless(f"client {number}") for number, count in enumerate(jobs_of) for _ in range(count)]
    for one in jobs:
        fair.admit(one)
    clients: Counter[str] = Counter({one.client: 0 for one in jobs})
    served: Counter[Job] = Counter(dict.fromkeys(jobs, 0))
    for room in rooms:
        shares = fair.share(jobs, room)
        assert sum(shares.values()) == room
        for one, count in shares.items():
            clients[one.client] += count
            served[one] += count
        assert max(clients.values()) - min(clients.values()) <= SLICE
        for one, other in combinations(jobs, 2):
            assert one.client != other.client or abs(served[one] - served[other]) <= SLICE


@settings(max_examples=20)
@given(
    st.integers(1, 10),
    st.integers(32, 600),
    st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=10),
)
def test_nobody_starves_however_many_short_jobs_come(long: int, room: int, floods: list[tuple[int, bool]]) -> None:
    """Short jobs without end, of ever new clients or of one: each client with a long job has its turn nevertheless."""
    fair = Fair()
    jobs = [endless(f"long {number}") for number in range(long)]
    for one in jobs:
        fair.admit(one)
    ahead = dict.fromkeys((one.client for one in jobs), long)  # clients in the ring when it joined the end
    since = dict.fromkeys(ahead, 0)  # engine work since then
    for number in range(60):
        count, same = floods[number % len(floods)]
        for place in range(count):
            jobs.append(short("flood" if same else f"flood {number} {place}"))
            fair.admit(jobs[-1])
        shares = fair.share(jobs, room)
        for client in since:
            since[client] += sum(shares.values())
        for one, places in shares.items():
            one.take(places)
            if one.client in since:
                since[one.client], ahead[one.client] = 0, len({other.client for other in jobs})
            elif not one.wanted:
                jobs.remove(one)
                fair.withdraw(one)
        assert all(since[client] <= 4 * ahead[client] * SLICE + 2 * room for client in since)


@settings(max_examples=40)
@given(st.integers(1, 50), st.booleans(), st.integers(3, TURN - TURN // 4))
def test_a_short_job_overtakes(long: int, same_client: bool, wish: int) -> None:
    fair = Fair()
    jobs = [endless("greedy" if same_client else f"greedy {number}") for number in range(long)]
    new = job("greedy" if same_client else "polite", n=wish, n0=0, alpha=0.5)
    for one in (*jobs, new):
        fair.admit(one)
    shares = fair.share([*jobs, new], TURN)
    assert shares[new] == new.wanted
    assert sum(shares.values()) == new.wanted + -(-new.wanted // 3)  # and little else, so that the run is soon over


def test_a_job_is_short_as_long_as_its_wish_is() -> None:
    """A certificate with many samples says so after its selection; one that looks now and then does not."""
    fair, certificate, looking = Fair(), job("a", n=100_000), job("b", n=100_000, radius=0.05)
    for one in (certificate, looking):
        fair.admit(one)
    assert fair.share([certificate, looking], 1000) == {certificate: 100, looking: 100}
    certificate.take(100)
    certificate.receive(np.array([60, 40, 0]))
    looking.take(100)
    looking.receive(np.array([60, 40, 0]))
    assert certificate.drawn + certificate.wanted > SHORT
    assert fair.share([certificate, looking], 1000) == {looking: 100, certificate: 34}


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_runs_too_small_for_a_quarter_owe_it(batch: int) -> None:
    """Two clients take turns in the quarter: an eighth of the places at least is that of the long job."""
    fair, long, flood = Fair(), endless("long"), short("flood")
    for one in (long, flood):
        fair.admit(one)
    served = Counter[Job]()
    for _ in range(3000):
        served.update(fair.share([long, flood], batch))  # none is taken: the short job's wish never ends
    assert served.total() == 3000 * batch
    assert served[long] >= 3000 * batch / 8 - SLICE


class Left(Job):
    """A job with a given time left."""

    seconds_left = 1.0

    @property
    def time_left(self) -> float:
        return self.seconds_left


@pytest.fixture
def clocked() -> Left:
    return Left(Request(image=IMAGES[0], deadline=1.0).ask(CARD), client="urgent")


def test_runs_are_short_enough_for_newcomers_and_deadlines(clocked: Left) -> None:
    pace, others = Pace(), [endless("a"), endless("b")]
    pace.learn(1000, 1.0)
    fair, quick, brief = Fair(), Pace(), short("c")
    assert fair.room(others, 1024, pace) == InOrder().room(others, 1024, pace) == 1024
    fair.admit(brief)
    fair.withdraw(brief)  # from now on others like it are expected
    assert fair.room(others, 1024, pace) == TURN
    assert fair.room(others, 100, pace) == 100
    for seconds, room, in_order in ((10.0, TURN, 1024), (0.1, 80, 80), (0.001, LEAST, 1), (-1.0, LEAST, 1)):
        clocked.seconds_left = seconds
        assert fair.room([*others, clocked], 1024, pace) == room
        assert InOrder().room([*others, clocked], 1024, pace) == in_order
    quick.learn(1000, 0.005)
    assert fair.room(others, 1024, quick) == 320  # what takes 2 ms, with a margin


def test_without_short_jobs_runs_grow_to_the_batch() -> None:
    pace, fair, long, brief = Pace(), Fair(), endless("a"), short("b")
    for one in (long, brief):
        fair.admit(one)
    fair.withdraw(brief)
    for _ in range(QUIET):
        assert fair.room([long], 1024, pace) == TURN
        fair.share([long], TURN)
    assert fair.room([long], 1024, pace) == 1024
    long.take(SHORT + 1)
    fair.withdraw(long)  # not a short one
    assert fair.room([], 1024, pace) == 1024


def expecting_short_ones() -> Fair:
    """Shares as they are when a short job has just ended, be it as long as short ones are."""
    fair, brief = Fair(), job("before", n=SHORT, n0=0)
    fair.admit(brief)
    brief.take(SHORT)
    fair.withdraw(brief)
    return fair


@settings(max_examples=30)
@given(st.integers(1, 12), st.integers(0, 3), st.sampled_from([64, 256, 1024, 4096]))
def test_short_jobs_that_wait_share_one_run(count: int, long: int, batch: int) -> None:
    """As many as fit into three quarters of the batch; the run is no longer than they and the others' part need."""
    fair = expecting_short_ones()
    briefs, others = [short(f"short {number}") for number in range(count)], [endless("long") for _ in range(long)]
    for one in (*others, *briefs):
        fair.admit(one)
    wish = sum(one.wanted for one in briefs)
    room = fair.room([*others, *briefs], batch, Pace())
    assert room == min(batch, max(TURN, -(-4 * wish // 3)))
    shares = fair.share([*others, *briefs], room)
    served, rest = (sum(shares.get(one, 0) for one in some) for some in (briefs, others))
    if wish <= batch - batch // 4:
        assert served == wish
        assert rest == (-(-wish // 3) if long else 0)  # and no more: the run is soon over
    else:
        assert served + rest == (batch if long else min(batch, wish))
        assert served >= batch - batch // 4


@pytest.mark.parametrize("batch", [64, 256, 1024])
@pytest.mark.parametrize("arriving", [1, 4, 30])
def test_a_long_job_keeps_its_share_of_the_runs_that_short_ones_are_given(batch: int, arriving: int) -> None:
    """Short jobs of one other client are always there, `arriving` at a time, in runs of the room they are given."""
    fair, pace, long = expecting_short_ones(), Pace(), endless("long")
    fair.admit(long)
    crowd: list[Job] = []
    places, starving = Counter[bool](), 0
    for _ in range(60):
        while len(crowd) < arriving:
            crowd.append(short("others"))
            fair.admit(crowd[-1])
        jobs = [long, *crowd]
        shares = fair.share(jobs, fair.room(jobs, batch, pace))
        starving = 0 if long in shares else starving + sum(shares.values())
        assert starving <= 8 * SLICE + batch  # two clients: each of them a slice of the quarter before it comes round
        for one, count in shares.items():
            places[one is long] += count
            one.take(count)
            if not one.wanted:
                crowd.remove(one)
                fair.withdraw(one)
    assert places[True] >= places.total() / 8 - SLICE
    if 4 * arriving * short("others").wanted <= 3 * batch:  # all of them are served at once: nobody else wants the rest
        assert places[True] >= places.total() / 4


def test_room_counts_the_wishes_of_short_jobs_alone() -> None:
    fair, pace = expecting_short_ones(), Pace()
    pace.learn(1000, 1.0)
    long, middle = endless("a"), job("b", n=SHORT, n0=0)
    assert fair.room([long], 4096, pace) == TURN
    assert fair.room([long, middle], 4096, pace) == -(-4 * SHORT // 3)
    assert fair.room([long, job("c", n=SHORT + 1, n0=0)], 4096, pace) == TURN
    middle.take(400)
    assert fair.room([long, middle], 4096, pace) == -(-4 * (SHORT - 400) // 3)
