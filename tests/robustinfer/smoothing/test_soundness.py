"""A certificate is wrong with probability at most alpha: classifiers with known truth, 20,000 certificates a mode.

Votes are drawn from the known probabilities and fed to the procedures. The probabilities are chosen to be hard: the
true radius lies a hair below one that the procedure can hand out, so that errors come as often as they are allowed to.
"""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy import optimize, special, stats

from robustinfer.smoothing import estimates, procedures, rules
from robustinfer.smoothing.bounds import round_radius_down
from robustinfer.smoothing.estimates import Smoothing
from robustinfer.smoothing.looks import look_level, look_sizes
from robustinfer.smoothing.procedures import anytime, decide, fixed, planned

ALPHA = 0.01
CERTIFICATES = 20_000
SIGMA = 0.5
HAIR = 1e-9


@dataclass(frozen=True)
class Truth:
    """What votes are drawn from, the label of the smoothed classifier, and the distance to its next other label."""

    probabilities: tuple[float, ...]
    label: int
    radius: float

    def broken_by(self, outcome: Any) -> Any:
        return outcome.label is not None and (outcome.label != self.label or outcome.radius > self.radius)


def linear(radius: Any) -> Any:
    """A half-space at distance `radius`: p_A = Phi(radius / sigma), and the smoothed boundary is the same."""
    p = float(special.ndtr(radius / SIGMA))
    return Truth((p, 1 - p, 0.0), 0, radius)


def spherical(distance: Any, *, ball: Any = 2.0, dimension: Any = 4) -> Any:
    """Class 0 inside a ball; the image at `distance` from its centre. The worst direction is radial.

    |x + e|^2 / sigma^2 is noncentral chi-square, so the smoothed classifier is a ball, too, and its radius is where
    that probability is 1/2.
    """

    def inside(at: Any) -> Any:
        return float(stats.ncx2.cdf((ball / SIGMA) ** 2, dimension, (at / SIGMA) ** 2))

    border = optimize.brentq(lambda at: inside(at) - 0.5, 1e-9, ball + 5, xtol=1e-14)
    p = inside(distance)
    return Truth((p, 1 - p, 0.0), 0 if distance < border else 1, abs(border - distance))


def multiclass(*probabilities: Any) -> Any:
    """Any probabilities of several classes: Theorem 1 of Cohen et al. is tight, so this is the radius of some f."""
    first, second = np.argsort(probabilities)[::-1][:2]
    radius = SIGMA / 2 * (special.ndtri(probabilities[first]) - special.ndtri(probabilities[second]))
    return Truth((*probabilities, 0.0), int(first), float(radius) - HAIR)


def hard(smoothing: Any, top: Any, n: Any, share: Any, same_sample: Any = False) -> Any:
    """The half-space whose true radius lies a hair below what `top` of n votes prove."""
    bound = estimates.estimate_same_sample if same_sample else estimates.estimate
    found = bound(smoothing, np.array([top, n - top, 0]), 0, share)
    return linear(round_radius_down(found.radius) - HAIR)


def hard_at_look() -> Any:
    """The half-space whose true radius lies a hair below what 100 votes of a look prove."""
    counts = np.array([100, LOOKS[4] - 100, 0])
    found = estimates.estimate_at_look(TOP, counts, 0, lower=LEVEL, upper=None)
    return linear(round_radius_down(found.radius) - HAIR)


TOP, TWO = Smoothing(SIGMA, "top-class"), Smoothing(SIGMA, "two-class")
N, N0 = 200, 20
LOOKS = look_sizes(N, 40)
LEVEL = look_level(ALPHA, N, 40)

MODES: dict[str, Callable[[], Any]] = {
    "fixed": lambda: fixed(TOP, classes=2, n0=N0, n=N, alpha=ALPHA),
    "fixed, two-class": lambda: fixed(TWO, classes=2, n0=N0, n=N, alpha=ALPHA),
    "same-sample": lambda: fixed(TOP, classes=2, n0=0, n=N, alpha=ALPHA),
    "same-sample, two-class": lambda: fixed(TWO, classes=2, n0=0, n=N, alpha=ALPHA),
    "radius": lambda: decide(TOP, classes=2, n0=N0, n=N, alpha=ALPHA, radius=0.3, start=40),
    "radius, two-class": lambda: decide(TWO, classes=2, n0=N0, n=N, alpha=ALPHA, radius=0.3, start=40),
    "tolerance": lambda: planned(TOP, classes=2, n0=N0, n=N, alpha=ALPHA, tolerance=0.05),
    "tolerance, two-class": lambda: planned(TWO, classes=2, n0=N0, n=N, alpha=ALPHA, tolerance=0.05),
    "deadline": lambda: anytime(TOP, classes=2, n0=N0, n=N, alpha=ALPHA, start=40),
    "deadline, two-class": lambda: anytime(TWO, classes=2, n0=N0, n=N, alpha=ALPHA, start=40),
}

CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "linear, a hair below 120 of 200": lambda: hard(TOP, 120, N, ALPHA),
    "linear, a hair below 170 of 200": lambda: hard(TOP, 170, N, ALPHA),
    "linear, two-class, a hair below 170 of 200": lambda: hard(TWO, 170, N, ALPHA),
    "linear, same-sample, a hair below 170 of 200": lambda: hard(TOP, 170, N, ALPHA, same_sample=True),
    "linear, a hair below the radius that is asked for": lambda: linear(0.3 - HAIR),
    "linear, a hair below a look": hard_at_look,
    "a coin": lambda: linear(HAIR),
    "spherical, inside": lambda: spherical(1.2),
    "spherical, near the border": lambda: spherical(1.7),
    "spherical, outside": lambda: spherical(2.4),
}
RANDOM = {
    "no majority": multiclass(0.4, 0.35, 0.25),
    "near tie": multiclass(0.5, 0.499, 0.001),
    "many classes": multiclass(*np.random.default_rng(5).dirichlet(np.full(10, 0.4))),
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds are pure functions of few different counts: remembered, 20,000 certificates take seconds."""
    for name in ("estimate", "estimate_same_sample", "planned_size"):
        monkeypatch.setattr(procedures, name, _remembering(getattr(procedures, name)))
    for name in ("prove", "hope"):
        monkeypatch.setattr(rules._TightLooks, name, _remembering(getattr(rules._TightLooks, name)))


def _remembering(function: Any) -> Any:
    known = {}

    @functools.wraps(function)
    def look_up(smoothing: Any, counts: Any, *rest: Any) -> Any:
        key = (smoothing, counts.tobytes(), *rest)
        if key not in known:
            known[key] = function(smoothing, counts, *rest)
        return known[key]

    return look_up


def false_certificates(
    procedure: Any, truth: Any, feed: Callable[..., Any], *, certificates: Any = CERTIFICATES, seed: Any = 0
) -> Any:
    generator = np.random.default_rng(seed)
    draw = functools.partial(generator.multinomial, pvals=truth.probabilities)
    return sum(truth.broken_by(feed(procedure(), draw)) for _ in range(certificates))


def assert_at_most_alpha(false: Any, certificates: Any = CERTIFICATES, alpha: Any = ALPHA) -> None:
    """One-sided binomial test: refuted only if so many would be a wonder (1 in 10,000) at a rate of alpha."""
    test = stats.binomtest(false, certificates, alpha, alternative="greater")
    assert test.pvalue > 1e-4, f"{false} of {certificates} certificates are wrong, at alpha = {alpha}"


@pytest.mark.parametrize("mode", MODES)
def test_false_certificates_are_at_most_alpha(mode: Any, quick: Any, feed: Callable[..., Any]) -> None:
    """20,000 certificates of each mode, spread over the classifiers; and each classifier alone keeps to alpha."""
    share, total = CERTIFICATES // len(CLASSIFIERS), 0
    for seed, classifier in enumerate(CLASSIFIERS.values()):
        false = false_certificates(MODES[mode], classifier(), feed, certificates=share, seed=seed)
        assert_at_most_alpha(false, share)
        total += false
    assert_at_most_alpha(total)


HARDEST = {
    "fixed": ("linear, a hair below 170 of 200", 0.5),
    "same-sample": ("a coin", 0.5),
    "fixed, two-class": ("linear, two-class, a hair below 170 of 200", 0.5),
}


@pytest.mark.parametrize("mode", HARDEST)
def test_the_hardest_classifier_of_a_mode(mode: Any, quick: Any, feed: Callable[..., Any]) -> None:
    """20,000 certificates where errors are likeliest: at most alpha, and more than a share of alpha, so it is hard."""
    classifier, at_least = HARDEST[mode]
    false = false_certificates(MODES[mode], CLASSIFIERS[classifier](), feed)
    assert_at_most_alpha(false)
    assert false > at_least * ALPHA * CERTIFICATES


@pytest.mark.parametrize("name", RANDOM)
def test_false_certificates_of_random_classifiers(name: Any, feed: Callable[..., Any]) -> None:
    """Several classes, also without a majority: only the two-class bound certifies there."""
    truth, total = RANDOM[name], 0
    sizes: dict[str, Any] = {"classes": len(truth.probabilities) - 1, "n": N, "alpha": ALPHA}
    modes = [
        lambda: fixed(TWO, n0=N0, **sizes),
        lambda: fixed(TWO, n0=0, **sizes),
        lambda: fixed(TOP, n0=0, **sizes),
        lambda: decide(TWO, n0=N0, radius=0.1, start=100, **sizes),
        lambda: planned(TWO, n0=N0, tolerance=0.05, **sizes),
        lambda: anytime(TWO, n0=N0, start=100, **sizes),
    ]
    for seed, mode in enumerate(modes):
        total += false_certificates(mode, truth, feed, certificates=500, seed=seed)
    assert_at_most_alpha(total, 500 * len(modes))


def test_a_clock_in_the_hands_of_an_adversary_does_not_help(quick: Any, feed: Callable[..., Any]) -> None:
    """The deadline falls the moment the certificate is wrong: the worst stopping rule there is."""
    truth = hard_at_look()
    rule = rules.rule_of(2, TOP, n=N, start=40, alpha=ALPHA)
    generator, false, certificates = np.random.default_rng(1), 0, CERTIFICATES // 4
    for _ in range(certificates):
        counts, selected = np.zeros(3, dtype=np.int64), False

        def draw(wanted: Any, counts: Any = counts) -> Any:
            nonlocal selected
            if selected and counts.sum():
                found = rule.prove(counts, 0)
                if round_radius_down(found.radius) > truth.radius:
                    return "deadline"
            votes = generator.multinomial(wanted, truth.probabilities)
            if selected:
                counts += votes
            selected = True
            return votes

        false += truth.broken_by(feed(MODES["deadline"](), draw))
    assert_at_most_alpha(false, certificates)


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("bound", ["top-class", "two-class"])
def test_same_sample_errors_summed_exactly(bound: Any, classes: Any) -> None:
    """Every outcome of n = 14 votes, with its probability: no sampling error, at 60 distributions."""
    smoothing, n = Smoothing(SIGMA, bound), 14
    votes = [c for c in itertools.product(range(n + 1), repeat=classes) if sum(c) == n]
    found = [feed_once(fixed(smoothing, classes=classes, n0=0, n=n, alpha=ALPHA), (*c, 0)) for c in votes]
    generator = np.random.default_rng(2)
    for concentration in (0.3, 1.0, 30.0):
        for _ in range(20):
            truth = multiclass(*generator.dirichlet(np.full(classes, concentration)))
            wrong = [c for c, outcome in zip(votes, found, strict=True) if truth.broken_by(outcome)]
            mass = stats.multinomial.pmf(np.array(wrong), n, truth.probabilities[:-1]).sum() if wrong else 0.0
            assert mass <= ALPHA


def feed_once(procedure: Any, votes: Any) -> Any:
    next(procedure)
    try:
        procedure.send(np.array(votes, dtype=np.int64))
    except StopIteration as end:
        return end.value
    raise AssertionError("the procedure wants more")


@pytest.mark.parametrize(
    ("unsound", "mode", "classifier"),
    [
        ("full alpha for both", "same-sample", "a coin"),
        ("full alpha at every look", "radius", "linear, a hair below the radius that is asked for"),
    ],
)
def test_an_unsound_budget_would_be_caught(
    unsound: Any, mode: Any, classifier: Any, quick: Any, feed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests above can fail: well-known mistakes are refuted by them."""
    monkeypatch.setattr(procedures, "estimate_same_sample", procedures.estimate)  # type: ignore[attr-defined]
    monkeypatch.setattr(rules, "look_level", lambda share, n, start: share)
    false = false_certificates(MODES[mode], CLASSIFIERS[classifier](), feed, certificates=CERTIFICATES // 2)
    with pytest.raises(AssertionError, match="certificates are wrong"):
        assert_at_most_alpha(false, CERTIFICATES // 2)
