"""Who gets the places of an engine run.

`InOrder` serves one caller, who wants answers in order. `Fair` serves whoever comes, while a server runs:

1. As long as a short job has ended within the last `QUIET` runs, a run has at most one turn of places: `TURN` samples,
   or what takes `TURN_SECONDS` where that is more, or what all short jobs that wait need. Who arrives waits for no more
   than that before the next run is made up. Without short jobs a run may fill the engine's batch, which is a little
   faster: the first short one waits for it.
2. Up to three quarters of a run go to short jobs, those whose present wish ends within their first `SHORT` samples: a
   job's length is not known in advance, but whatever ends soon is among them. Clients take turns of `SLICE` samples,
   and of a client's short jobs the one that has drawn least comes first. A run that they do not fill is not filled by
   others, except for:
3. The rest, and never less than a quarter of the run if anybody is left, goes to all jobs in turn, short ones
   too: `SLICE` samples to a client, in its turn `SLICE` samples to one of its jobs.

What this promises, whoever else comes, and whatever they ask for:

- Nobody starves. A ring's newcomers join at its end, so each of the m clients ahead of one that waits takes at most one
  slice before that one's turn comes. Rule 3 has at least a quarter of all places as long as somebody waits, so the turn
  comes after at most 4 m SLICE samples of engine work and one run; that of one of its j jobs after j such turns.
- Clients are equal. While two clients wish for more than they get, the places that rule 3 gives them differ by at most
  SLICE, since when whatever moment: a lap of the ring gives each of them one slice. So do two jobs of a client.
- A short job overtakes. If short jobs wish for no more than 3/4 of the engine's batch together, the next run fulfils
  them all, unless a deadline is near.
- A deadline is kept: a run is cut to what fits into the time that any job has left, but not below `LEAST` samples, so
  that a clock of one client does not cost the others their speed. Its job takes its turns like any other.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from .crew import Pace
from .jobs import Job

__all__ = ["LEAST", "QUIET", "SHORT", "SLICE", "TURN", "TURN_SECONDS", "Fair", "InOrder", "Ring", "Sharing"]

TURN = 144  # samples: soon done, and three quarters of them hold the first look of a `predict`
TURN_SECONDS = 0.002  # for engines that are faster than that
SHORT = 1024  # samples: a default `predict`, however it ends, and the first looks of a certificate
SLICE = 256  # samples
LEAST = 32  # samples
QUIET = 256  # runs: about a second of turns, where a sample takes 30 microseconds

Key = TypeVar("Key", bound=Hashable)
Shares = dict[Job, int]  # places of one run


class Sharing(Protocol):
    """A rule that makes up runs."""

    def admit(self, job: Job) -> None:
        """A job has come."""

    def withdraw(self, job: Job) -> None:
        """A job has gone."""

    def room(self, jobs: Sequence[Job], batch: int, pace: Pace) -> int:
        """The places of the next run."""

    def share(self, jobs: Sequence[Job], room: int) -> Shares:
        """Who gets them."""


class InOrder:
    """The first unfinished job is served first, and what it leaves goes to the next ones.

    Jobs under a deadline have the engine to themselves, and share it equally.
    """

    def admit(self, job: Job) -> None:
        """Nothing to remember."""

    def withdraw(self, job: Job) -> None:
        """Nothing to forget."""

    def room(self, jobs: Sequence[Job], batch: int, pace: Pace) -> int:
        """The batch, or fewer where a deadline is near."""
        return min(batch, _until_a_deadline(jobs, batch, pace))

    def share(self, jobs: Sequence[Job], room: int) -> Shares:
        """Places in the order of arrival."""
        urgent = [job for job in jobs if job.question.deadline is not None]
        if urgent:  # samples of others would cost them time
            return _equal(urgent, room)
        shares: Shares = {}
        for job in jobs:
            if not room:
                break
            shares[job] = min(job.wanted, room)
            room -= shares[job]
        return shares


class Fair:
    """The rule above: fair to clients and to their jobs, and quick for short ones."""

    def __init__(self) -> None:
        self._express: Ring[str] = Ring()
        self._clients: Ring[str] = Ring()
        self._jobs: dict[str, Ring[Job]] = {}
        self._quiet = QUIET  # runs since a short job ended
        self._owed = 0  # thirds of places that rule 3 has not had yet, where runs are too small for a quarter

    def admit(self, job: Job) -> None:
        """The job, and its client if that is new, join their rings at the end."""
        if job.client not in self._jobs:
            self._jobs[job.client] = Ring()
            self._express.join(job.client)
            self._clients.join(job.client)
        self._jobs[job.client].join(job)

    def withdraw(self, job: Job) -> None:
        """The job leaves, and with its last job the client."""
        if job.drawn <= SHORT:
            self._quiet = 0
        ring = self._jobs[job.client]
        ring.leave(job)
        if not ring:
            del self._jobs[job.client]
            self._express.leave(job.client)
            self._clients.leave(job.client)

    def room(self, jobs: Sequence[Job], batch: int, pace: Pace) -> int:
        """A turn, or what short jobs need, or the batch if it is quiet; less where a deadline is near."""
        turn = batch
        if self._quiet < QUIET:
            short = sum(job.wanted for job in jobs if _is_short(job))
            turn = max(TURN, pace.fitting(TURN_SECONDS), -(-4 * short // 3))
        return min(turn, batch, max(LEAST, _until_a_deadline(jobs, batch, pace)))

    def share(self, jobs: Sequence[Job], room: int) -> Shares:
        """Places for short jobs, then for everybody in turn."""
        self._quiet += 1
        shares: Shares = defaultdict(int)
        used = self._share_short(jobs, room - max(room // 4, min(room, self._owed // 3)), shares)
        self._owed += used
        rest = min(room - used, -(-self._owed // 3)) if used else room
        wishes: dict[str, dict[Job, int]] = defaultdict(dict)
        for job in jobs:
            if wish := job.wanted - shares[job]:
                wishes[job.client][job] = wish
        totals = {client: sum(wish.values()) for client, wish in wishes.items()}
        self._owed = max(0, self._owed - 3 * rest) if totals else 0
        for client, given in self._clients.deal(totals, rest).items():
            for job, count in self._jobs[client].deal(wishes[client], given).items():
                shares[job] += count
        return {job: count for job, count in shares.items() if count}

    def _share_short(self, jobs: Sequence[Job], room: int, shares: Shares) -> int:
        """Places for short jobs; returns how many they take."""
        short: dict[str, list[Job]] = defaultdict(list)
        for job in jobs:
            if _is_short(job):
                short[job.client].append(job)
        totals = {client: sum(job.wanted for job in own) for client, own in short.items()}
        dealt = self._express.deal(totals, room)
        for client, given in dealt.items():
            for job in sorted(short[client], key=lambda job: (job.drawn, job.number)):
                shares[job] = min(job.wanted, given)
                given -= shares[job]
        return sum(dealt.values())


class Ring(Generic[Key]):
    """Takes turns: whoever is first gets up to a slice, in one run or in several, and then joins the end."""

    def __init__(self) -> None:
        self._left: dict[Key, int] = {}  # of the present slice; the order of the entries is that of the turns

    def __bool__(self) -> bool:
        return bool(self._left)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._left)

    def join(self, key: Key) -> None:
        """At the end."""
        self._left[key] = SLICE

    def leave(self, key: Key) -> None:
        """From wherever it stands."""
        del self._left[key]

    def deal(self, wishes: Mapping[Key, int], room: int) -> dict[Key, int]:
        """Give up to `room` places to those who wish for some, in turn."""
        given: dict[Key, int] = {}
        open_wishes = dict(wishes)
        while room and open_wishes:
            key = next(key for key in self._left if key in open_wishes)
            count = min(open_wishes[key], self._left[key], room)
            given[key] = given.get(key, 0) + count
            room -= count
            open_wishes[key] -= count
            self._left[key] -= count
            if not open_wishes[key]:
                del open_wishes[key]
            if not self._left[key]:
                self.leave(key)
                self.join(key)
        return given


def _is_short(job: Job) -> bool:
    """Whether its present wish ends soon."""
    return job.drawn + job.wanted <= SHORT


def _until_a_deadline(jobs: Sequence[Job], batch: int, pace: Pace) -> int:
    """How many samples fit before the first deadline; the batch, if there is none."""
    left = [seconds for job in jobs if (seconds := job.time_left) is not None]
    return pace.fitting(max(min(left), 0.0)) if left else batch


def _equal(jobs: Sequence[Job], room: int) -> Shares:
    """Equal shares of the room, and of what some jobs leave; odd places go to whoever has drawn least so far."""
    shares: Shares = {}
    # Whoever wants least comes first, so that what it leaves is known; the last one gets the odd places.
    order = sorted(jobs, key=lambda job: (job.wanted, -job.drawn))
    for position, job in enumerate(order):
        shares[job] = min(job.wanted, room // (len(order) - position))
        room -= shares[job]
    return shares
