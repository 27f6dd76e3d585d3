"""Certificates from votes: the scan over radii against brute force and true radii, and files whose members vote."""

import dataclasses
import itertools
import json
import math
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from robustinfer import Card, CardMember, Certificate, InputSpec, Predictor
from robustinfer.errors import CardError, CertificateError, ClassCountError, SampleSizeError, SettingError
from robustinfer.smoothing.bounds import round_radius_down
from robustinfer.smoothing.combination import Ballot, combine
from robustinfer.smoothing.estimates import Smoothing, estimate
from robustinfer.smoothing.member_procedures import (
    decide_by_members,
    fixed_by_members,
    planned_by_members,
    vote_by_members,
)
from robustinfer.smoothing.procedures import Outcome, Procedure
from robustinfer.smoothing.tally import Tally, plurality

Array = npt.NDArray[Any]
Feed = Callable[[Procedure, Callable[[int], Any]], Outcome]

WEIGHTS = st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0])


@st.composite
def ballots(draw: st.DrawFn) -> list[Ballot]:
    """Up to six members, three classes, few radii, so that ties of every kind come up."""
    cast = []
    for _ in range(draw(st.integers(1, 6))):
        label = draw(st.one_of(st.none(), st.integers(0, 2)))
        radius = 0.0 if label is None else draw(st.sampled_from([0.1, 0.2, 0.3, 0.4]))
        cast.append(Ballot(draw(WEIGHTS), label, radius))
    return cast


def brute_force(cast: list[Ballot], classes: int = 4) -> tuple[int | None, float]:
    """The largest radius at which one label wins for every way in which the members without a guarantee may vote.

    One class more than any ballot has, so that the adversary may also vote for a class nobody named.
    """
    best: tuple[int | None, float] = (None, 0.0)
    for radius in sorted({ballot.radius for ballot in cast if ballot.label is not None}):
        choices = [
            [ballot.label] if ballot.label is not None and ballot.radius >= radius else range(classes)
            for ballot in cast
        ]
        winners = {_winner(cast, labels, classes) for labels in itertools.product(*choices)}
        if len(winners) == 1 and (winner := winners.pop()) is not None:
            best = (winner, radius)
    return best


def _winner(cast: list[Ballot], labels: Any, classes: int) -> int | None:
    """The label with strictly the most weight, in exact arithmetic; None for a tie."""
    mass = [Fraction(0)] * classes
    for ballot, label in zip(cast, labels, strict=True):
        mass[label] += Fraction(ballot.beta)
    order = sorted(range(classes), key=lambda label: mass[label])
    return order[-1] if mass[order[-1]] > mass[order[-2]] else None


@settings(max_examples=150, deadline=None)
@given(ballots())
def test_the_scan_is_the_brute_force_search(cast: list[Ballot]) -> None:
    combined = combine(cast)
    assert (combined.label, combined.radius) == brute_force(cast)
    if combined.limit is not None:
        assert cast[combined.limit].radius == combined.radius


def test_the_scan_by_hand() -> None:
    cast = [Ballot(0.2, 1, 0.9), Ballot(0.4, 0, 0.1), Ballot(0.4, 0, 0.5)]
    assert dataclasses.astuple(combine(cast)) == (0, 0.1, 1)  # below 0.1 all stand; above, 0.4 + 0.2 beats 0.4
    assert dataclasses.astuple(combine([Ballot(0.3, 0, 0.1), Ballot(0.7, 0, 0.5)])) == (0, 0.5, 1)
    assert dataclasses.astuple(combine([Ballot(1.0, 2, 0.25)])) == (2, 0.25, 0)


def test_an_abstention_counts_against_every_label() -> None:
    assert combine([Ballot(1.0, 0, 0.3), Ballot(1.0, None, 0.0)]).label is None
    assert combine([Ballot(1.5, 0, 0.3), Ballot(1.0, None, 0.0)]).label == 0
    assert combine([Ballot(1.0, None, 0.0)]).label is None


def test_rounding_does_not_make_a_tie_a_win() -> None:
    """0.1 + 0.2 is above 0.3 in floating point by one rounding; the weights as they are stored decide."""
    cast = [Ballot(0.1, 0, 0.5), Ballot(0.1, 0, 0.5), Ballot(0.1, 0, 0.5), Ballot(0.3, 1, 0.5)]
    exact = 3 * Fraction(0.1) > Fraction(0.3)
    assert (combine(cast).label == 0) == exact
    assert combine([Ballot(0.5, 0, 0.5), Ballot(0.5, 1, 0.5)]).label is None


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31))
def test_rho_never_exceeds_the_true_radius_of_half_spaces(seed: int) -> None:
    """Members sign(w x + b), smoothed: half-spaces again, each with its exact radius, the distance to its boundary.

    The true radius of the vote is the shortest way into a cell in which the vote differs, over all cells.
    """
    stream = np.random.default_rng(seed)
    normals = stream.normal(size=(4, 3))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    margins = stream.normal(size=4)  # w x + b; the radius of member t is |margins[t]|
    weights = stream.choice([0.1, 0.2, 0.3, 0.4], size=4)
    labels = (margins > 0).astype(int)
    combined = combine([Ballot(*one) for one in zip(weights, labels.tolist(), np.abs(margins), strict=True)])
    assume(combined.label is not None)
    assert combined.label is not None
    truth = true_radius(normals, margins, weights, combined.label)
    assert combined.radius <= truth + 1e-9


def true_radius(normals: Array, margins: Array, weights: Array, label: int) -> float:
    """The distance from x to the nearest cell of the arrangement in which the strict winner is not `label`."""
    best = math.inf
    for signs in itertools.product([-1, 1], repeat=len(margins)):
        votes = [Fraction(0), Fraction(0)]  # exact: sums of rounded weights would call near-ties otherwise
        for weight, sign in zip(weights, signs, strict=True):
            votes[int(sign > 0)] += Fraction(float(weight))
        if votes[label] > votes[1 - label]:
            continue
        sides = np.array(signs)[:, None] * normals
        best = min(best, shortest(sides, -np.array(signs) * margins))
    return best


def shortest(constraints: Array, needed: Array) -> float:
    """min |z| with constraints z >= needed, by Lawson and Hanson's least-distance programming."""
    if (needed <= 0).all():
        return 0.0
    target = np.zeros(constraints.shape[1] + 1)
    target[-1] = 1.0
    matrix = np.vstack([constraints.T, needed])
    residual = matrix @ nnls(matrix, target)[0] - target
    return math.inf if np.linalg.norm(residual) < 1e-9 else float(np.linalg.norm(residual[:-1] / residual[-1]))


def test_rho_is_the_true_radius_of_members_that_look_the_same_way() -> None:
    """Parallel half-spaces: the vote changes exactly where enough of them have."""
    normals, margins = np.tile([[1.0, 0.0]], (5, 1)), np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    weights = np.ones(5)
    combined = combine([Ballot(1.0, 1, margin) for margin in margins])
    assert combined.radius == 0.3
    assert true_radius(normals, margins, weights, 1) == pytest.approx(0.3)


# Files whose members vote


class StackedEngine:
    """Member t says 1 where the first pixel is above its threshold: smoothed, a half-space with a known radius."""

    name, device, batch = "members", "cpu", 64

    def __init__(self, thresholds: Any) -> None:
        self.thresholds = np.asarray(thresholds, dtype=np.float32)

    def scores(self, images: Array) -> Array:
        margin = images.reshape(len(images), -1)[:, :1] - self.thresholds
        return np.stack([-margin, margin], axis=2).astype(np.float32)


THRESHOLDS = [0.25, 0.35, 0.45]  # at a first pixel of 0.8 (204/255): radii 0.55, 0.45, 0.35


def votes_card(betas: Any = (0.5, 0.3, 0.2), **changes: Any) -> Card:
    members = tuple(CardMember("half-space", beta, stage) for stage, beta in enumerate(betas, start=1))
    return Card(**{"classes": ("a", "b"), "input": InputSpec(1, 2, 2), "kind": "votes", "sigma": 0.25, **changes,
                   "members": members})  # fmt: skip


def voters(betas: Any = (0.5, 0.3, 0.2), thresholds: Any = THRESHOLDS, **changes: Any) -> Predictor:
    return Predictor(StackedEngine(thresholds), votes_card(betas, **changes), digest="sha256:members")


IMAGE = np.full((1, 2, 2), 204, dtype=np.uint8)


def test_a_certificate_from_votes_is_sound_and_near_the_truth() -> None:
    """True: 0.45, the radius of the second member; the first has half of the weight, which does not win alone."""
    certificate = voters().certify(IMAGE, n=20_000, seed=1)
    assert certificate.method == "clopper-pearson/votes"
    assert certificate.label == 1
    assert 0.42 < certificate.radius <= 0.45 + 0.002  # thresholds lie between grey levels
    assert [member.label for member in certificate.members] == [1, 1, 1]
    assert certificate.radius == certificate.members[1].radius
    assert certificate.p_lower == certificate.members[1].p_lower


def test_each_member_has_its_share_of_alpha() -> None:
    certificate = voters().certify(IMAGE, n=5_000, alpha=0.003, seed=2, bound="top-class")
    for member in certificate.members:
        counts = np.array([*member.counts, member.invalid])
        found = estimate(Smoothing(0.25, "top-class"), counts, 1, 0.001)
        assert member.radius == pytest.approx(round_radius_down(found.radius), abs=2e-6)


@pytest.mark.parametrize(
    "settings",
    [{}, {"n": 500}, {"n0": 0}, {"radius": 0.3}, {"radius": 0.6, "n": 50_000}, {"tolerance": 0.05}, {"deadline": 0.2}],
    ids=str,
)
def test_every_mode_answers_and_replays(settings: dict[str, Any]) -> None:
    predictor = voters()
    certificate = predictor.certify(IMAGE, **{"n": 3_000, "seed": 5, **settings})
    again = Certificate.loads(json.dumps(certificate.to_json()))
    assert again == certificate
    replay = predictor.verify(again, IMAGE)
    assert replay.ok, replay.reason
    assert certificate.radius <= 0.452
    if settings == {"radius": 0.3}:
        assert certificate.stopped == "certified"
        assert certificate.radius >= 0.3
    if "n" in settings and settings.get("radius") == 0.6:
        assert certificate.stopped == "out of reach"
        assert certificate.samples_used < 20_000


def test_a_plan_of_members_names_its_quantile() -> None:
    """It has always had one: an older certificate, which does not name it, is replayed by the same plan."""
    predictor = voters()
    asked: dict[str, Any] = {"n": 3_000, "seed": 5, "tolerance": 0.05}
    certificate = predictor.certify(IMAGE, **asked)
    assert certificate.quantile == 0.7
    assert predictor.certify(IMAGE, **asked, quantile=0.95).samples_used > certificate.samples_used
    assert predictor.verify(dataclasses.replace(certificate, quantile=None), IMAGE).ok
    assert predictor.certify(IMAGE, **asked, members=False).quantile is None


def test_the_plurality_vote_can_be_certified_as_one_classifier() -> None:
    """The vote of half-spaces that look the same way is that of the second one, 0.45 away; no shares of alpha."""
    predictor = voters()
    whole, votes = (predictor.certify(IMAGE, n=20_000, seed=1, members=members) for members in (False, True))
    assert (whole.method, whole.members) == ("clopper-pearson", ())
    assert "members" not in whole.to_json()
    assert whole.counts == votes.counts  # the same samples
    assert votes.radius < whole.radius <= 0.452
    assert predictor.verify(whole, IMAGE).ok


def test_predictions_and_scores_of_a_votes_file() -> None:
    predictor = voters()
    prediction = predictor.predict(IMAGE, seed=3)
    assert (prediction.label, prediction.stopped) == (1, "decided")
    np.testing.assert_allclose(predictor.scores(np.full((1, 2, 2), 0.4)), [[0.2, 0.8]], rtol=1e-6)
    torn = np.full((1, 2, 2), 0.35 * 255).round().astype(np.uint8)
    assert predictor.predict(torn, n=1_000, seed=3).samples_used > prediction.samples_used


def test_a_member_that_is_no_number_votes_for_nothing() -> None:
    engine = StackedEngine(THRESHOLDS)

    class Broken(StackedEngine):
        def scores(self, images: Array) -> Array:
            scores = super().scores(images)
            scores[:, 0] = np.nan
            return scores

    predictor = Predictor(Broken(THRESHOLDS), votes_card((0.2, 0.4, 0.4)), digest="sha256:broken")
    certificate = predictor.certify(IMAGE, n=2_000, seed=1)
    assert certificate.members[0].invalid == 2_000
    assert certificate.members[0].label is None
    assert certificate.label == 1
    heavy = Predictor(Broken(THRESHOLDS), votes_card((0.6, 0.2, 0.2)), digest="sha256:broken")
    assert heavy.certify(IMAGE, n=2_000, seed=1).abstained
    assert np.isnan(plurality(np.full((1, 2, 3), np.nan, dtype=np.float32), (0.5, 0.5))).all()
    assert plurality(engine.scores(np.ones((1, 1, 2, 2), dtype=np.float32)), (2.0, 1.0, 1.0)).tolist() == [[0, 1]]


@pytest.mark.parametrize("rules", [1, 2])
def test_members_that_vote_for_no_class_certify_nothing(feed: Feed, rules: int) -> None:
    """One member that is heavier than all others together, or every one of them, has only invalid samples."""
    smoothing = Smoothing(1.0, "top-class")
    for betas, clear in (((0.6, 0.2, 0.2), 2), ((1.0, 1.0, 1.0), 0)):
        tally = Tally(2, betas, members=True)

        def draw(count: int, clear: int = clear) -> Array:
            return np.array([*[[0, 0, count]] * (3 - clear), *[[0, count, 0]] * clear, [0, 0, count]])

        settings: dict[str, Any] = {"n0": 100, "n": 5_000, "alpha": 0.001, "rules": rules}
        outcome = feed(decide_by_members(smoothing, tally, radius=0.1, **settings), draw)
        assert (outcome.label, outcome.radius, outcome.stopped, outcome.looks) == (None, 0.0, "out of reach", 1)


def test_many_images_and_both_ways_share_batches() -> None:
    predictor = voters()
    images = [np.full((1, 2, 2), value, dtype=np.uint8) for value in (10, 90, 204, 255)]
    one_by_one = [predictor.certify(image, n=700, seed=seed) for seed, image in enumerate(images)]
    together = list(predictor.certify_many(images, n=700, seeds=range(4)))
    assert [dataclasses.replace(one, seconds=0) for one in one_by_one] == [
        dataclasses.replace(one, seconds=0) for one in together
    ]


def test_a_changed_member_is_found_out() -> None:
    predictor = voters()
    certificate = predictor.certify(IMAGE, n=2_000, seed=1)
    first, *rest = certificate.members
    forged = dataclasses.replace(certificate, members=(dataclasses.replace(first, radius=first.radius + 0.1), *rest))
    assert "members[0].radius" in predictor.verify(forged, IMAGE).reason
    swapped = dataclasses.replace(first, counts=tuple(reversed(first.counts)))
    assert predictor.verify(dataclasses.replace(certificate, members=(swapped, *rest)), IMAGE).flips > 0
    with pytest.raises(CertificateError, match="add up"):
        dataclasses.replace(certificate, members=(dataclasses.replace(first, invalid=1), *rest))
    with pytest.raises(CertificateError, match="and only then"):
        dataclasses.replace(certificate, members=())
    with pytest.raises(CertificateError, match="voting members"):
        predictor.verify(dataclasses.replace(certificate, members=tuple(rest)), IMAGE)
    with pytest.raises(CertificateError, match="replays the methods"):
        predictor.verify(dataclasses.replace(certificate, method="other", members=()), IMAGE)


def test_stopping_gives_what_is_proven_so_far() -> None:
    stop = threading.Event()
    stop.set()
    certificate = voters().certify(IMAGE, deadline=5.0, stop=stop, seed=1)
    assert (certificate.abstained, certificate.stopped) == (True, "interrupted")
    assert len(certificate.members) == 3


def test_refusals(predictor_of: Callable[..., Predictor], half_space: Callable[[Array], Array]) -> None:
    with pytest.raises(SettingError, match="export --votes"):
        predictor_of(half_space).certify(IMAGE, members=True)
    with pytest.raises(CardError, match="betas of at least 0"):
        voters((0.5, -0.3, 0.2))
    with pytest.raises(CardError, match="betas of at least 0"):
        Predictor(StackedEngine([0.5]), dataclasses.replace(votes_card(), members=()))
    with pytest.raises(ClassCountError, match="3 voting members"):
        Predictor(StackedEngine([0.5]), votes_card()).certify(IMAGE, n=1_000)
    with pytest.raises(SampleSizeError, match="use n >="):  # 15 are enough for one classifier, not for a third of alpha
        voters().certify(IMAGE, n=11, n0=5, bound="top-class", alpha=0.001)


# The statement about alpha, on members whose true radii are known


def wrong(outcome: Outcome, truth: float, label: int) -> bool:
    return outcome.label is not None and (outcome.label != label or outcome.radius > truth)


@pytest.mark.parametrize("mode", ["fixed", "same-sample", "decide", "planned", "vote"])
def test_wrong_with_probability_at_most_alpha(feed: Feed, mode: str) -> None:
    """Three members whose noisy votes are independent binomials: the worst case for a union bound.

    With alpha as large as 0.3 and 600 repetitions, a procedure that spent alpha on each member would be caught.
    """
    alpha, sigma, repeats = 0.3, 1.0, 600
    rates = np.array([0.7, 0.7, 0.7])
    radii = sigma * np.array([0.5244005127080407] * 3)  # Phi^-1(0.7)
    truth = combine([Ballot(1.0, 1, radius) for radius in radii]).radius
    tally, smoothing = Tally(2, (1.0, 1.0, 1.0), members=True), Smoothing(sigma, "top-class")
    stream = np.random.default_rng(17)
    settings: dict[str, Any] = {"n": 200, "alpha": alpha}
    make: dict[str, Callable[[], Procedure]] = {
        "fixed": lambda: fixed_by_members(smoothing, tally, n0=50, **settings),
        "same-sample": lambda: fixed_by_members(smoothing, tally, n0=0, **settings),
        "decide": lambda: decide_by_members(smoothing, tally, n0=50, radius=0.6, **settings),
        "planned": lambda: planned_by_members(smoothing, tally, n0=50, tolerance=0.05, **settings),
        "vote": lambda: vote_by_members(tally, **settings),
    }

    def draw(count: int) -> Array:
        ones = stream.binomial(count, rates)
        rows = [[count - one, one, 0] for one in ones]
        return np.array([*rows, [0, count, 0]])

    errors = sum(wrong(feed(make[mode](), draw), truth if mode != "vote" else math.inf, 1) for _ in range(repeats))
    # P(a binomial of 600 trials at 0.3 exceeds 220) is below 0.0005.
    assert errors <= 220


def test_a_union_bound_is_needed(feed: Feed) -> None:
    """The same members with alpha for each of them: their combination is wrong more often than alpha."""
    alpha, repeats, stream = 0.3, 600, np.random.default_rng(3)
    single, truth, errors = Tally(2, (1.0,), members=True), 0.5244005127080407, 0
    for _ in range(repeats):
        ones = stream.binomial(200, 0.7, size=3)
        found = []
        for one in ones:
            counts = {1: np.array([[0, 1, 0]] * 2), 200: np.array([[200 - one, one, 0]] * 2)}
            procedure = fixed_by_members(Smoothing(1.0, "top-class"), single, n0=1, n=200, alpha=alpha)
            found.append(feed(procedure, counts.__getitem__))
        cast = [Ballot(1.0, one.label, one.radius) for one in found]
        errors += max(ballot.radius for ballot in cast) > truth
    assert errors > 1.5 * alpha * repeats
