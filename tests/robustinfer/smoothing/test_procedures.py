"""Procedures: when they stop, what they say then, and how alpha is split."""

import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special
from scipy.special import ndtri

from robustinfer.smoothing import estimates, planning
from robustinfer.smoothing.bounds import clopper_pearson_lower, clopper_pearson_upper
from robustinfer.smoothing.estimates import Smoothing, estimate, estimate_same_sample, shares
from robustinfer.smoothing.looks import GROWTH, geometric_looks, look_level, look_sizes, round_to_grid
from robustinfer.smoothing.planning import needed, planned_size
from robustinfer.smoothing.procedures import anytime, decide, fixed, planned, vote

TOP, TWO = Smoothing(0.5, "top-class"), Smoothing(0.5, "two-class")
SIZES: dict[str, Any] = {"classes": 3, "n0": 100, "n": 10_000, "alpha": 0.001}


def expected(*shares: Any) -> Any:
    """Draws votes exactly in these shares."""

    def draw(count: Any) -> Any:
        votes = np.floor(np.array([*shares, 0.0]) * count).astype(np.int64)
        votes[0] += count - votes.sum()
        return votes

    return draw


def interrupted_after(draws: Any, draw: Any, word: Any = "deadline") -> Any:
    left = [draws]

    def until(count: Any) -> Any:
        left[0] -= 1
        return word if left[0] < 0 else draw(count)

    return until


def test_fixed_is_cohens_certify(feed: Callable[..., Any]) -> None:
    outcome = feed(fixed(TOP, **SIZES), expected(0.9, 0.06, 0.04))
    p_lower = clopper_pearson_lower(9000, 10_000, 0.001)
    assert outcome.p_lower == p_lower
    assert outcome.radius == pytest.approx(0.5 * special.ndtri(p_lower), abs=1e-6)
    assert (outcome.label, outcome.selection, outcome.stopped) == (0, 100, "complete")
    assert list(outcome.counts) == [9000, 600, 400, 0]


def test_the_two_class_bound_uses_the_runner_up(feed: Callable[..., Any]) -> None:
    outcome = feed(fixed(TWO, **SIZES), expected(0.6, 0.1, 0.3))
    lower = clopper_pearson_lower(6000, 10_000, 0.0009)
    upper = clopper_pearson_upper(3000, 10_000, 0.0001 / 3)
    assert (outcome.p_lower, outcome.p_upper) == pytest.approx((lower, upper))
    assert outcome.radius == pytest.approx(0.25 * (special.ndtri(lower) - special.ndtri(upper)), abs=1e-6)
    assert outcome.radius > feed(fixed(TOP, **SIZES), expected(0.6, 0.1, 0.3)).radius


def test_the_two_class_bound_certifies_without_a_majority(feed: Callable[..., Any]) -> None:
    assert feed(fixed(TOP, **SIZES), expected(0.45, 0.3, 0.25)).label is None
    outcome = feed(fixed(TWO, **SIZES), expected(0.45, 0.3, 0.25))
    assert outcome.label == 0
    assert outcome.radius > 0.05


@pytest.mark.parametrize("bound", ["top-class", "two-class"])
@pytest.mark.parametrize("entries", [3, 4, 11, 1001])
def test_no_procedure_spends_more_than_alpha(bound: Any, entries: Any) -> None:
    smoothing, alpha = Smoothing(0.5, bound), 0.001
    lower, upper = estimates.shares(smoothing, alpha, entries)
    assert lower + (entries - 1) * (upper or 0.0) <= alpha * (1 + 1e-12)
    votes = np.zeros(entries, dtype=np.int64)
    votes[:2] = 90, 10
    level = alpha / 2 if bound == "top-class" else alpha / (2 * entries)
    found = estimate_same_sample(smoothing, votes, 0, alpha)
    assert found.p_lower == clopper_pearson_lower(90, 100, level)


def test_the_distance_of_the_drawn_noise_moves_both_bounds_to_the_safe_side() -> None:
    votes = np.array([800, 150, 50, 0])
    plain, moved = (estimate(Smoothing(0.5, "two-class", slack), votes, 0, 0.001) for slack in (0.0, 1e-3))
    assert moved.p_upper is not None
    assert plain.p_upper is not None
    assert moved.p_lower == pytest.approx(plain.p_lower - 1e-3)
    assert moved.p_upper == pytest.approx(plain.p_upper + 1e-3)
    assert moved.radius < plain.radius


@pytest.mark.parametrize(
    ("shares", "radius", "stopped", "certified"),
    [
        ((0.99, 0.01, 0.0), 0.5, "certified", True),
        ((0.7, 0.3, 0.0), 0.5, "out of reach", True),  # some radius is proven, though not this one
        ((0.851, 0.149, 0.0), 0.5, "exhausted", True),  # Phi(1) = 0.8413: hoped for to the end
        ((0.34, 0.33, 0.33), 0.5, "out of reach", False),
    ],
)
def test_deciding_a_radius(feed: Callable[..., Any], shares: Any, radius: Any, stopped: Any, certified: Any) -> None:
    outcome = feed(decide(TOP, radius=radius, **SIZES), expected(*shares))
    assert outcome.stopped == stopped
    assert (outcome.radius >= radius) == (stopped == "certified")
    assert (outcome.label == 0) == certified
    if stopped != "exhausted":
        assert outcome.counts.sum() <= 300
    assert outcome.looks == look_sizes(10_000, 100).index(int(outcome.counts.sum())) + 1


@pytest.mark.parametrize("rules", [1, 2])
@pytest.mark.parametrize("smoothing", [TOP, TWO], ids=["top-class", "two-class"])
def test_votes_for_no_class_certify_nothing(feed: Callable[..., Any], smoothing: Any, rules: Any) -> None:
    """Invalid samples prove a radius of no class: given up at once, as a decision, and drawn to the end by a clock."""

    def invalid(count: int) -> Any:
        return np.array([0, 0, 0, count])

    outcome = feed(decide(smoothing, radius=0.1, rules=rules, **SIZES), invalid)
    assert (outcome.label, outcome.radius, outcome.stopped, outcome.looks) == (None, 0.0, "out of reach", 1)
    assert list(outcome.counts) == [0, 0, 0, 100]  # counted, so that whoever asked is told why
    endless = feed(anytime(smoothing, rules=rules, **SIZES), invalid)
    assert (endless.label, endless.stopped, endless.counts.sum()) == (None, "exhausted", 10_000)


@pytest.mark.parametrize("smoothing", [TOP, TWO], ids=["top-class", "two-class"])
def test_a_radius_that_n_samples_would_not_prove_is_given_up_before_they_are_drawn(
    feed: Callable[..., Any], smoothing: Any
) -> None:
    """A little below Phi(1) = 0.8413, which the first rules could not tell from it by all n samples."""
    outcome = feed(decide(smoothing, radius=0.5, **SIZES), expected(0.835, 0.165, 0.0))
    assert (outcome.stopped, outcome.radius < 0.5) == ("out of reach", True)
    assert outcome.counts.sum() < 10_000
    first = feed(decide(smoothing, radius=0.5, rules=1, **SIZES), expected(0.835, 0.165, 0.0))
    assert (first.stopped, first.counts.sum()) == ("exhausted", 10_000)


@pytest.mark.parametrize("rules", [1, 2])
def test_a_look_has_its_share_of_alpha(feed: Callable[..., Any], rules: Any) -> None:
    outcome = feed(decide(TOP, radius=0.5, rules=rules, **SIZES), expected(0.99, 0.01, 0.0))
    votes, seen = int(outcome.counts[0]), int(outcome.counts.sum())
    if rules == 1:
        assert outcome.p_lower == clopper_pearson_lower(votes, seen, 0.001 / len(geometric_looks(10_000, 100)))
    else:
        level = look_level(0.001, 10_000, 100)
        assert outcome.p_lower == round_to_grid(clopper_pearson_lower(votes, seen, level))


@pytest.mark.parametrize("draws", [0, 1, 2, 5])
@pytest.mark.parametrize("word", ["deadline", "interrupted"])
def test_a_deadline_gives_the_best_certificate_so_far(feed: Callable[..., Any], draws: Any, word: Any) -> None:
    outcome = feed(anytime(TOP, **SIZES), interrupted_after(draws, expected(0.95, 0.05, 0.0), word))
    assert outcome.stopped == word
    assert outcome.looks == max(draws - 1, 0)
    assert outcome.counts.sum() == ([0, *look_sizes(10_000, 32)][outcome.looks])
    assert (outcome.label == 0) == (draws > 1)


def test_more_time_never_makes_the_certificate_worse(feed: Callable[..., Any]) -> None:
    generator = np.random.default_rng(0)
    votes = [generator.multinomial(count, (0.9, 0.1, 0.0, 0.0)) for count in np.diff([0, *look_sizes(10_000, 32)])]
    radii = []
    for draws in range(len(votes)):
        supply = iter([np.array([32, 0, 0, 0]), *votes])
        radii.append(feed(anytime(TOP, **SIZES), interrupted_after(draws + 1, lambda _, s=supply: next(s))).radius)
    assert radii == sorted(radii)
    assert radii[-1] > radii[1]


@pytest.mark.parametrize("tolerance", [0.01, 0.02, 0.05])
@pytest.mark.parametrize("smoothing", [TOP, TWO], ids=["top-class", "two-class"])
@pytest.mark.parametrize("p", [0.7, 0.95, 0.999])
def test_a_planned_radius_is_within_the_tolerance(
    feed: Callable[..., Any], smoothing: Any, tolerance: Any, p: Any
) -> None:
    shares = (p, 0.7 * (1 - p), 0.3 * (1 - p))
    whole = feed(fixed(smoothing, **SIZES), expected(*shares))
    outcome = feed(planned(smoothing, **SIZES | {"n0": 500}, tolerance=tolerance), expected(*shares))
    assert outcome.stopped == "planned"
    assert outcome.radius >= whole.radius - tolerance - 0.002
    assert outcome.counts.sum() <= 10_000


def test_a_hopeless_pilot_ends_the_work(feed: Callable[..., Any]) -> None:
    outcome = feed(planned(TOP, **SIZES | {"n0": 500}, tolerance=0.05), expected(0.35, 0.33, 0.32))
    assert (outcome.label, outcome.stopped, outcome.counts.sum()) == (None, "out of reach", 0)


def test_plans_grow_with_the_demand() -> None:
    pilot = np.array([450, 40, 10, 0])
    sizes = [needed(TOP, pilot, 0, 100_000, 0.001, tolerance) for tolerance in (0.1, 0.05, 0.02, 0.01, 0.001)]
    assert sizes == sorted(sizes)
    assert sizes[0] < 2_000
    assert sizes[-1] > 50_000


@pytest.mark.parametrize(
    "procedure",
    [
        lambda: fixed(TWO, **SIZES),
        lambda: fixed(TWO, **SIZES | {"n0": 0}),
        lambda: fixed(TOP, **SIZES | {"n0": 0}),
        lambda: decide(TWO, radius=0.1, **SIZES),
        lambda: planned(TWO, tolerance=0.05, **SIZES),
        lambda: anytime(TWO, **SIZES),
        lambda: vote(classes=3, n=1000, alpha=0.001),
    ],
)
def test_samples_that_vote_for_no_class_are_never_a_label(feed: Callable[..., Any], procedure: Any) -> None:
    def nothing_finite(count: Any) -> Any:
        return np.array([0, 0, 0, count])

    def half_finite(count: Any) -> Any:
        return np.array([count - count // 2, 0, 0, count // 2])

    assert feed(procedure(), nothing_finite).label is None
    assert feed(procedure(), half_finite).label is None


def test_a_vote_stops_when_the_label_is_clear(feed: Callable[..., Any]) -> None:
    clear = feed(vote(classes=3, n=1000, alpha=0.001), expected(0.9, 0.1, 0.0))
    assert (clear.label, clear.stopped, clear.counts.sum()) == (0, "decided", 100)
    tie = feed(vote(classes=3, n=1000, alpha=0.001), expected(0.5, 0.5, 0.0))
    assert (tie.label, tie.stopped, tie.counts.sum()) == (None, "exhausted", 1000)


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.52, 0.48), (0.34, 0.33, 0.33)])
def test_votes_are_wrong_with_probability_at_most_alpha(feed: Callable[..., Any], shares: Any) -> None:
    """PREDICT at ties and near-ties: any label but the first is wrong, at a tie every label is half wrong."""
    generator, alpha = np.random.default_rng(1), 0.05
    procedure = [vote(classes=len(shares), n=400, alpha=alpha) for _ in range(1500)]
    found = [feed(one, lambda count: generator.multinomial(count, (*shares, 0.0))).label for one in procedure]
    wrong = sum(label is not None and label != 0 for label in found)
    assert wrong / len(found) < alpha + 3 * np.sqrt(alpha / len(found))


@pytest.mark.parametrize(
    ("n", "start"), [(1, 100), (99, 100), (100, 100), (101, 100), (100_000, 100), (50_000, 32), (10**7, 32), (500, 200)]
)
def test_looks_grow_and_end_at_n(n: Any, start: Any) -> None:
    sizes = look_sizes(n, start)
    assert sizes[0] >= min(n, start)
    assert sizes[-1] == n
    assert all(a < b <= 1.5 * a + 1 for a, b in itertools.pairwise(sizes))
    tight = [size for size in sizes if 100 <= size <= 100_000]
    assert all(b <= GROWTH * a + 1 for a, b in itertools.pairwise(tight))
    first = geometric_looks(n, start)
    assert (first[0], first[-1]) == (min(n, start), n)
    assert all(a < b <= 1.3 * a + 1 for a, b in itertools.pairwise(first))


def test_a_plan_that_is_surer_takes_more_samples() -> None:
    """For one pilot: between the median and the worst need over its interval, growing with the quantile."""
    pilot, plan = np.array([450, 40, 10, 0]), (100_000, 0.001, 0.02)
    sizes = [planned_size(TOP, pilot, 0, *plan, quantile) for quantile in (0.5, 0.7, 0.9, 0.99)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1] <= needed(TOP, pilot, 0, *plan)
    assert planned_size(TWO, pilot, 0, *plan, 0.5) < planned_size(TWO, pilot, 0, *plan, 0.95)


def test_the_plan_is_the_quantile_of_the_need_by_simulation() -> None:
    """Half of the probabilities that Jeffreys' posterior draws need no more samples than the median plan has."""
    pilot = np.array([430, 60, 10, 0])
    table = planning._table(TOP.sigma, 100_000, 0.001, 0.02)
    drawn = np.random.default_rng(0).beta(430.5, 70.5, 100_000)
    needs = table.sizes[np.abs(table.rates - drawn[:, None]).argmin(axis=1)]
    for quantile in (0.5, 0.7, 0.9):
        size = planned_size(TOP, pilot, 0, 100_000, 0.001, 0.02, quantile)
        assert (needs < size).mean() - 0.01 <= quantile <= (needs <= size).mean() + 0.01


@pytest.mark.parametrize("smoothing", [TOP, TWO])
@pytest.mark.parametrize(("n", "tolerance"), [(100_000, 0.05), (100_000, 0.02), (3_000, 0.02)])
@pytest.mark.parametrize("counts", [(400, 60, 30, 10, 0), (480, 15, 4, 1, 0), (500, 0, 0, 0, 0)])
def test_a_plan_on_average_has_the_least_cost(
    smoothing: Any, n: int, tolerance: float, counts: tuple[int, ...]
) -> None:
    """Beside other sizes, with radii at probabilities that Jeffreys' posterior draws (1 % for the grid of the plan)."""
    pilot = np.array(counts)
    size, rng = planned_size(smoothing, pilot, 0, n, 0.001, tolerance), np.random.default_rng(0)
    p_a, others = (rng.beta(count + 0.5, 500 - count + 0.5, 4000) for count in (counts[0], 500 - counts[1]))
    lower, upper = shares(smoothing, 0.001, len(pilot))

    def radius(m: int) -> float:
        score_a = ndtri(clopper_pearson_lower(np.round(m * p_a), m, lower))
        if upper is None:
            return float(np.mean(smoothing.sigma * np.maximum(score_a, 0.0)))
        score_b = ndtri(clopper_pearson_lower(np.round(m * others), m, upper))
        return float(np.mean(smoothing.sigma * (score_a + score_b) / 2))

    price = 2 * min(planning.TYPICAL / tolerance, planning.SHARE * n) / tolerance

    def cost(m: int) -> float:
        return m + price * (radius(n) - radius(m))

    assert 0 < size <= n
    assert cost(size) <= 1.01 * min(cost(m) for m in (size // 3, size // 2, min(2 * size, n), min(4 * size, n), n))


def test_a_plan_on_average_loses_more_where_a_radius_is_dear() -> None:
    """And less where it is cheap, than the tolerance that plans for each image keep on either."""
    plan: dict[str, Any] = {"n": 100_000, "alpha": 0.001, "tolerance": 0.05}
    cheap, dear = np.array([400, 60, 40, 0]), np.array([500, 0, 0, 0])
    for pilot, compare in ((cheap, operator.gt), (dear, operator.lt)):
        assert compare(planned_size(TOP, pilot, 0, **plan), planned_size(TOP, pilot, 0, **plan, quantile=0.5))


def test_a_plan_below_one_half_follows_the_runner_up() -> None:
    """Two-class: p_A = 0.44 against 0.3 is worth some samples, though not all; with p_A below p_B none are."""
    plan: dict[str, Any] = {"n": 100_000, "alpha": 0.001, "tolerance": 0.05}
    assert 0 < needed(TWO, np.array([220, 150, 130, 0]), 0, **plan) < 20_000
    assert needed(TOP, np.array([200, 160, 140, 0]), 0, **plan) == 0
    assert needed(TWO, np.array([100, 200, 200, 0]), 0, **plan) == 0
    for quantile in (0.7, None):
        plan["quantile"] = quantile
        assert 0 < planned_size(TWO, np.array([220, 150, 130, 0]), 0, **plan) < 20_000
        assert planned_size(TOP, np.array([200, 160, 140, 0]), 0, **plan) == 0
        assert planned_size(TWO, np.array([100, 200, 200, 0]), 0, **plan) == 0


@pytest.mark.parametrize("n", [1, 2, 10, 49, 50, 51, 100, 1000, 10**6])
def test_the_grid_of_a_plan_is_sorted_for_every_n(n: Any) -> None:
    """Needs and radii are looked up by bisection, which means nothing on a grid that turns back."""
    table = planning._table(0.25, n, 0.001, 0.01)
    assert (np.diff(table.rates) > 0).all()
    assert (table.rates[0], table.rates[-1]) == (0.01, 1.0)
