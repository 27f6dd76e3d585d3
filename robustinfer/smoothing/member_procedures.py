"""The procedures of `procedures.py` for a model whose members vote: certificates by Theorem certified.

Each member is smoothed by itself, g_t(x) = argmax_c P(h_t(x + noise) = c), and the answer is about the weighted
plurality vote of these, h_Q(x) = sum_t Q_t 1[g_t(x) = .]. All members see the same noise: one run of the engine is a
sample for all of them.

Error budget, for T members: each member's label and radius are proven by its procedure of `procedures.py` at the level
alpha/T, so all of them hold together except with probability T alpha/T = alpha. This is a union bound, and needs no
independence: the shared noise does no harm. Where all ballots hold, the combination is certain (`combination.py`). A
member that abstains claims nothing; it counts against every label.

| procedure | each member's label chosen on | each member's bounds together at |
|---|---|---|
| fixed, tolerance | n0 separate samples (n0 = 0: the same) | alpha/T |
| radius, deadline | n0 separate samples | alpha/T over all looks (`looks.py`) |
| predict | the same samples | alpha/(T K) at each of the K looks |

Votes are arrays as `Tally` counts them: one row a member, and a last row of the plurality votes of the samples, which
is recorded but proves nothing here.
"""

import math
from collections.abc import Sequence

from .bounds import binomial_p_value, round_radius_down
from .combination import Ballot, Combined, combine
from .estimates import Estimate, Smoothing, Votes, estimate, estimate_same_sample, runner_up
from .planning import QUANTILE, needed, planned_size
from .procedures import DECIDE_START, MemberOutcome, Outcome, Procedure, prediction_looks
from .rules import RULES, rule_of
from .tally import Tally

__all__ = ["decide_by_members", "fixed_by_members", "planned_by_members", "vote_by_members"]

_NOTHING = Estimate(0.0, None, 0.0)


def fixed_by_members(smoothing: Smoothing, tally: Tally, *, n0: int, n: int, alpha: float) -> Procedure:
    """`fixed` for each member at alpha/T, and their combination.

    P(the outcome has a label and the vote's label changes within its radius) <= alpha.
    """
    share, tops = alpha / len(tally.betas), None
    if n0:
        selection = yield n0
        if isinstance(selection, str):
            return _nothing(tally, 0, selection)
        tops = _tops(selection)
    counts = yield n
    if isinstance(counts, str):
        return _nothing(tally, n0, counts)
    prove = estimate_same_sample if tops is None else estimate
    tops = tops or _tops(counts)
    found = [prove(smoothing, row, top, share) for row, top in zip(counts[:-1], tops, strict=True)]
    return _outcome(tally, tops, found, counts, n0, looks=1, stopped="complete")


def decide_by_members(
    smoothing: Smoothing,
    tally: Tally,
    *,
    n0: int,
    n: int,
    alpha: float,
    radius: float = math.inf,
    start: int = DECIDE_START,
    rules: int = RULES,
) -> Procedure:
    """`decide`, and with an infinite radius `anytime`, for the vote: stop when its radius is certified or out of reach.

    rho_Q grows with every member's radius, so it is out of reach if it is so even with optimistic radii.
    """
    members = len(tally.betas)
    rule = rule_of(rules, smoothing, n=n, start=start, alpha=alpha, parts=members)
    selection = yield n0
    if isinstance(selection, str):
        return _nothing(tally, 0, selection)
    tops, counts, best, seen = _tops(selection), tally.empty(), [_NOTHING] * members, 0
    stopped = "exhausted"
    for look in rule.sizes:
        votes = yield look - tally.samples(counts)
        if isinstance(votes, str):
            stopped = votes
            break
        counts, seen = counts + votes, seen + 1
        rows = list(zip(counts[:-1], tops, strict=True))
        found = [rule.prove(row, top) for row, top in rows]
        best = [new if new.radius > old.radius else old for old, new in zip(best, found, strict=True)]
        if _combined(tally, tops, [one.radius for one in best]).radius >= radius:
            stopped = "certified"
            break
        hopes = [rule.hope(row, top) for row, top in rows] if math.isfinite(radius) else []
        if hopes and _combined(tally, tops, hopes).radius < radius:
            stopped = "out of reach"
            break
    return _outcome(tally, tops, best, counts, n0, looks=seen, stopped=stopped)


def planned_by_members(
    smoothing: Smoothing,
    tally: Tally,
    *,
    n0: int,
    n: int,
    alpha: float,
    tolerance: float,
    quantile: float | None = None,
    rules: int = RULES,
) -> Procedure:
    """`planned` with the largest of the sizes that the members need, each with probability `quantile`, or `QUANTILE`.

    If every member's radius is within the tolerance of what n samples would give, so is rho_Q: it grows with the radii,
    and raising all of them by the tolerance raises it by the same.
    """
    pilot = yield n0
    if isinstance(pilot, str):
        return _nothing(tally, 0, pilot)
    share, tops = alpha / len(tally.betas), _tops(pilot)
    rows = list(zip(pilot[:-1], tops, strict=True))
    if rules == 1:
        sizes = [needed(smoothing, row, top, n, share, tolerance) for row, top in rows]
    else:
        sizes = [planned_size(smoothing, row, top, n, share, tolerance, quantile or QUANTILE) for row, top in rows]
    if max(sizes) == 0:
        return _nothing(tally, n0, "out of reach")
    counts = yield max(sizes)
    if isinstance(counts, str):
        return _nothing(tally, n0, counts)
    found = [estimate(smoothing, row, top, share) for row, top in zip(counts[:-1], tops, strict=True)]
    return _outcome(tally, tops, found, counts, n0, looks=1, stopped="planned")


def vote_by_members(tally: Tally, *, n: int, alpha: float, slack: float = 0.0) -> Procedure:
    """`vote` for each member at alpha/T: P(the outcome has a label and it is not that of the vote) <= alpha.

    `slack` is paid once for all members, whose samples are the same.

    A member whose test has succeeded at a look has its label; one whose test has not counts against every label.
    """
    schedule = prediction_looks(n)
    counts, seen, stopped = tally.empty(), 0, "exhausted"
    labels: list[int | None] = [None] * len(tally.betas)
    combined = Combined(None, 0.0, None)
    for look in schedule:
        votes = yield look - tally.samples(counts)
        if isinstance(votes, str):
            stopped = votes
            break
        counts, seen = counts + votes, seen + 1
        level = (alpha / len(schedule) - look * slack) / len(tally.betas)
        labels = [_decided(row, level) if old is None else old for row, old in zip(counts[:-1], labels, strict=True)]
        combined = combine([Ballot(beta, one, 0.0) for beta, one in zip(tally.betas, labels, strict=True)])
        if combined.label is not None:
            stopped = "decided"
            break
    return Outcome(combined.label, 0.0, 0.0, None, counts[-1], 0, seen, stopped)


def _decided(counts: Votes, level: float) -> int | None:
    """The member's label, if Hung and Fithian's test of the top two counts gives one."""
    top = int(counts.argmax())
    first, second = int(counts[top]), int(counts[runner_up(counts, top)])
    decided = top < len(counts) - 1 and binomial_p_value(first, first + second) <= level
    return top if decided else None


def _tops(votes: Votes) -> list[int]:
    return [int(row.argmax()) for row in votes[:-1]]


def _combined(tally: Tally, tops: Sequence[int], radii: Sequence[float]) -> Combined:
    return combine([_ballot(tally, *ballot) for ballot in zip(tally.betas, tops, radii, strict=True)])


def _ballot(tally: Tally, beta: float, top: int, radius: float) -> Ballot:
    """A member's label and radius as they are handed out: no radius, or no class, is an abstention."""
    rounded = round_radius_down(radius)
    known = rounded > 0 and top < tally.classes
    return Ballot(beta, top if known else None, rounded if known else 0.0)


def _outcome(
    tally: Tally, tops: Sequence[int], found: Sequence[Estimate], counts: Votes, n0: int, *, looks: int, stopped: str
) -> Outcome:
    combined = _combined(tally, tops, [one.radius for one in found])
    limit = _NOTHING if combined.limit is None else found[combined.limit]
    members = []
    for beta, top, one, row in zip(tally.betas, tops, found, counts[:-1], strict=True):
        ballot = _ballot(tally, beta, top, one.radius)
        members.append(MemberOutcome(beta, ballot.label, ballot.radius, one.p_lower, one.p_upper, row))
    return Outcome(
        combined.label,
        combined.radius,
        limit.p_lower,
        limit.p_upper,
        counts[-1],
        n0,
        looks,
        stopped,
        tuple(members),
    )


def _nothing(tally: Tally, n0: int, why: str) -> Outcome:
    empty = tally.empty()
    members = [MemberOutcome(beta, None, 0.0, 0.0, None, empty[0]) for beta in tally.betas]
    return Outcome(None, 0.0, 0.0, None, empty[-1], n0, 0, why, tuple(members))
