"""The statistical procedures: how votes become a label, a radius, or an abstention.

A procedure is a generator. It yields how many further samples it wants and receives their votes; it returns an
`Outcome`. It draws nothing itself, so one engine batch can hold samples of many procedures, and a test can feed it from
a binomial distribution. Instead of votes it may receive a word, why no more samples come ("deadline", "interrupted"),
and then returns the best outcome that is valid.

Votes are counts per class with one more entry at the end, for samples whose scores were not finite. That entry is
treated as one more class that can never be the label, so it counts against every label.

Error budgets (each procedure spends alpha in total; A is the true top class, C the number of entries in the votes):

| procedure            | label chosen on       | lower bound on p_A at | each upper bound on p_c at |
|----------------------|-----------------------|-----------------------|----------------------------|
| fixed, top-class     | n0 separate samples   | alpha                 |                            |
| fixed, two-class     | n0 separate samples   | 0.9 alpha             | 0.1 alpha / (C - 1)        |
| same-sample, top     | the same n samples    | alpha / 2             |                            |
| same-sample, two     | the same n samples    | alpha / (2 C)         | alpha / (2 C)              |
| decide and anytime   | n0 separate samples   | the fixed ones; each is spread over the looks (`looks.py`)  |
| planned              | the pilot, which also plans n; it is discarded, so the fixed ones are valid as they are |
| vote                 | the same samples      | Hung and Fithian's test at alpha / K at each look, less the slack |
"""

import math
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from .bounds import binomial_p_value, round_radius_down
from .estimates import Estimate, Smoothing, Votes, estimate, estimate_same_sample
from .looks import geometric_looks
from .planning import needed, planned_size
from .rules import RULES, rule_of

__all__ = [
    "ANYTIME_START",
    "DECIDE_START",
    "MemberOutcome",
    "Outcome",
    "Procedure",
    "anytime",
    "decide",
    "fixed",
    "planned",
    "prediction_looks",
    "vote",
]

DECIDE_START = 100  # samples at the first look
ANYTIME_START = 32  # the same under a deadline, where an early answer counts


@dataclass(frozen=True)
class MemberOutcome:
    """What a procedure found about one member, where members vote (`member_procedures.py`)."""

    beta: float
    label: int | None
    radius: float
    p_lower: float
    p_upper: float | None
    counts: Votes


@dataclass(frozen=True)
class Outcome:
    """What a procedure found. `label` None is an abstention. `counts` are the votes of the estimation samples.

    Where members vote, `p_lower` and `p_upper` are those of the member whose radius is the outcome's.
    """

    label: int | None
    radius: float
    p_lower: float
    p_upper: float | None
    counts: Votes
    selection: int
    looks: int
    stopped: str
    members: tuple[MemberOutcome, ...] = ()


Procedure = Generator[int, Votes | str, Outcome]


def fixed(smoothing: Smoothing, *, classes: int, n0: int, n: int, alpha: float) -> Procedure:
    """CERTIFY of Cohen et al.: choose the label on n0 samples, bound its probability on n fresh ones.

    P(the outcome has a label and the label of g changes within its radius) <= alpha. With n0 = 0 the label is chosen
    on the n samples themselves ("same-sample"), which is paid for by the smaller shares in the table above.
    """
    top: int | None = None
    if n0:
        selection = yield n0
        if isinstance(selection, str):
            return _nothing(classes, 0, selection)
        top = _top(selection)
    counts = yield n
    if isinstance(counts, str):
        return _nothing(classes, n0, counts)
    if top is None:
        top = _top(counts)
        found = estimate_same_sample(smoothing, counts, top, alpha)
    else:
        found = estimate(smoothing, counts, top, alpha)
    return _outcome(found, top, counts, n0, looks=1, stopped="complete")


def decide(
    smoothing: Smoothing,
    *,
    classes: int,
    n0: int,
    n: int,
    alpha: float,
    radius: float,
    start: int = DECIDE_START,
    rules: int = RULES,
) -> Procedure:
    """Decide one radius: look at the growing counts, stop when the radius is certified or out of reach.

    P(the outcome has a label and the label of g changes within its radius) <= alpha: the bounds of all looks hold
    together with probability 1 - alpha (`rules.py`), and the outcome rests on one of them. Giving up early costs power
    and cannot make it unsound. Every radius is out of reach if most of the selection votes are invalid.
    """
    rule = rule_of(rules, smoothing, n=n, start=start, alpha=alpha)
    selection = yield n0
    if isinstance(selection, str):
        return _nothing(classes, 0, selection)
    top, counts, best, seen = _top(selection), _none(classes), Estimate(0.0, None, 0.0), 0
    stopped, label_possible = "exhausted", top < classes
    for look in rule.sizes:
        votes = yield look - int(counts.sum())
        if isinstance(votes, str):
            stopped = votes
            break
        counts, seen = counts + votes, seen + 1
        best = _better(best, rule.prove(counts, top))
        if label_possible and round_radius_down(best.radius) >= radius:
            stopped = "certified"
            break
        if math.isfinite(radius) and not (label_possible and rule.hope(counts, top) >= radius):
            stopped = "out of reach"
            break
    return _outcome(best, top, counts, n0, looks=seen, stopped=stopped)


def anytime(
    smoothing: Smoothing,
    *,
    classes: int,
    n0: int,
    n: int,
    alpha: float,
    start: int = ANYTIME_START,
    rules: int = RULES,
) -> Procedure:
    """The best certificate at any moment: `decide` with a radius that is never reached, until somebody says stop.

    Valid under any rule of stopping, a clock included, because all looks are paid for in advance.
    """
    outcome = yield from decide(
        smoothing, classes=classes, n0=n0, n=n, alpha=alpha, radius=math.inf, start=start, rules=rules
    )
    return outcome


def planned(
    smoothing: Smoothing,
    *,
    classes: int,
    n0: int,
    n: int,
    alpha: float,
    tolerance: float,
    quantile: float | None = None,
    rules: int = RULES,
) -> Procedure:
    """On average about `tolerance` below what n samples would give, from as few as a pilot says are needed.

    No limit for one image: the plan loses more where a radius is dear, the pilot leaves open what the rates are, and
    the luck of the draw comes on top. Simulated for a tolerance of 0.05, the mean loss is 0.030 to 0.046 by sigma and
    bound, and 16 to 39 % of the images lose more (`benchmarks/speed/sample_economy.py`). With `quantile`, the plan is
    for each image: its size is enough with that probability, by the pilot.

    The pilot chooses label and sample size and is then discarded; the fresh samples are independent of it, so `fixed`'s
    bounds hold at their full level, whatever size was chosen.
    """
    pilot = yield n0
    if isinstance(pilot, str):
        return _nothing(classes, 0, pilot)
    top = _top(pilot)
    if rules == 1:
        size = needed(smoothing, pilot, top, n, alpha, tolerance)
    else:
        size = planned_size(smoothing, pilot, top, n, alpha, tolerance, quantile)
    if size == 0:
        return Outcome(None, 0.0, 0.0, None, _none(classes), n0, 0, "out of reach")
    counts = yield size
    if isinstance(counts, str):
        return _nothing(classes, n0, counts)
    return _outcome(estimate(smoothing, counts, top, alpha), top, counts, n0, looks=1, stopped="planned")


def vote(*, classes: int, n: int, alpha: float, slack: float = 0.0) -> Procedure:
    """PREDICT of Cohen et al., in looks: P(the outcome has a label and it is not that of g) <= alpha.

    At each of the K looks the top two counts are compared by a two-sided binomial test at level alpha/K, or a little
    less: m samples of the drawn noise can be coupled with m of the exact one so that some pair differs with probability
    at most m `slack`, and the test on the latter is wrong with probability at most its level.
    """
    schedule = prediction_looks(n)
    counts, seen, stopped = _none(classes), 0, "exhausted"
    label: int | None = None
    for look in schedule:
        votes = yield look - int(counts.sum())
        if isinstance(votes, str):
            stopped = votes
            break
        counts, seen = counts + votes, seen + 1
        runner_up, top = np.argsort(counts, kind="stable")[-2:]
        top_count, next_count = int(counts[top]), int(counts[runner_up])
        if top < classes and binomial_p_value(top_count, top_count + next_count) <= (
            alpha / len(schedule) - look * slack
        ):
            label, stopped = int(top), "decided"
            break
    return Outcome(label, 0.0, 0.0, None, counts, 0, seen, stopped)


def prediction_looks(n: int) -> tuple[int, ...]:
    """The looks of a prediction."""
    return geometric_looks(n, min(n, 100), 2.0)


def _better(one: Estimate, other: Estimate) -> Estimate:
    return other if other.radius > one.radius else one


def _outcome(found: Estimate, top: int, counts: Votes, n0: int, *, looks: int, stopped: str) -> Outcome:
    radius = round_radius_down(found.radius)
    certified = radius > 0 and top < len(counts) - 1
    return Outcome(
        top if certified else None,
        radius if certified else 0.0,
        found.p_lower,
        found.p_upper,
        counts,
        n0,
        looks,
        stopped,
    )


def _nothing(classes: int, n0: int, why: str) -> Outcome:
    return Outcome(None, 0.0, 0.0, None, _none(classes), n0, 0, why)


def _none(classes: int) -> Votes:
    return np.zeros(classes + 1, dtype=np.int64)


def _top(counts: Votes) -> int:
    return int(counts.argmax())
