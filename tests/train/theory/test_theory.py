"""The definitions and lemmas of the theory, on random inputs and against exhaustive search."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from robust.train.attacks.accuracy import PgdAttack
from robust.train.theory import (
    LinearChecker,
    PgdChecker,
    error,
    find_weak_member,
    incorrect_pairs,
    loss,
    ova_error,
    ova_loss,
    robust_cross_entropy,
    robust_error,
    robust_loss,
    surrogate_bound,
    tilde,
    vote_loss,
    vote_scores,
)
from torch import Tensor, nn

from robustinfer.errors import TrainingError


@st.composite
def reachable(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """What labels a predictor reaches around each example (at least one: that of some point), and the true labels."""
    examples, classes = draw(st.integers(1, 6)), draw(st.integers(2, 5))
    rows = [draw(st.lists(st.booleans(), min_size=classes, max_size=classes).filter(any)) for _ in range(examples)]
    labels = [draw(st.integers(0, classes - 1)) for _ in range(examples)]
    return torch.tensor(rows), torch.tensor(labels)


@st.composite
def scores_on_a_ball(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Scores at finitely many points around each example, ties and equal scores included."""
    points, examples, classes = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(2, 4))
    size = points * examples * classes
    value = st.one_of(st.floats(-50, 50), st.sampled_from([0.0, 1.0]))
    scores = torch.tensor(draw(st.lists(value, min_size=size, max_size=size)), dtype=torch.float64)
    labels = torch.tensor([draw(st.integers(0, classes - 1)) for _ in range(examples)])
    return scores.view(points, examples, classes), labels


@given(reachable())
def test_losses_are_those_of_their_equations(case: tuple[Tensor, Tensor]) -> None:
    reached, labels = case
    pairs, found, ova = (
        incorrect_pairs(labels, reached.shape[1]),
        robust_loss(reached, labels),
        ova_loss(reached, labels),
    )
    for i, y in enumerate(labels.tolist()):
        others = [c for c in range(reached.shape[1]) if c != y]
        fooled = any(bool(reached[i, c]) for c in others)
        assert float(ova[i]) == int(fooled) - int(not fooled)
        assert [c for c in range(reached.shape[1]) if pairs[i, c]] == others
        for c in others:
            assert float(found[i, c]) == int(reached[i, c]) - int(not fooled)


@given(reachable())
def test_the_one_versus_all_loss_dominates(case: tuple[Tensor, Tensor]) -> None:
    """eq. (loss-domination), and with it the errors under any distribution over pairs and its marginal."""
    reached, labels = case
    pairs = incorrect_pairs(labels, reached.shape[1])
    dominated = robust_loss(reached, labels) <= ova_loss(reached, labels)[:, None]
    assert bool(dominated[pairs].all())
    distribution = pairs.double() / pairs.sum()
    assert robust_error(reached, labels, distribution) <= ova_error(reached, labels, distribution.sum(dim=1)) + 1e-12


@given(reachable())
def test_the_robust_loss_is_the_plain_loss_of_the_multilabel_predictor(case: tuple[Tensor, Tensor]) -> None:
    reached, labels = case
    assert torch.equal(robust_loss(reached, labels), loss(tilde(reached, labels), labels))


@given(scores_on_a_ball())
def test_lemma_surrogate(case: tuple[Tensor, Tensor]) -> None:
    """l_ova(f^am) <= 2/ln 2 l_ce - 1, with the ball being these points and ties broken against the label."""
    scores, labels = case
    own = scores.gather(2, labels.expand(len(scores), -1)[..., None])
    wins = scores >= own  # labels that some rule for ties would call the argmax
    top = scores >= scores.amax(dim=2, keepdim=True)
    reached = (wins & top).any(dim=0)
    bound = surrogate_bound(robust_cross_entropy(scores, labels))
    assert bool((ova_loss(reached, labels) <= bound + 1e-9).all())


def test_the_surrogate_is_tight_at_a_tie() -> None:
    tie = torch.zeros(1, 1, 2, dtype=torch.float64)
    assert float(surrogate_bound(robust_cross_entropy(tie, torch.tensor([0])))) == pytest.approx(1.0)


@given(st.integers(2, 5), st.integers(1, 5), st.integers(0, 2**31))
def test_lemma_loss_transfer(classes: int, members: int, seed: int) -> None:
    """Where the loss of Q is negative for every incorrect label, the weighted plurality vote is right."""
    stream = torch.Generator().manual_seed(seed)
    predicted = torch.randint(classes, (members, 8), generator=stream)
    weights = torch.rand(members, generator=stream, dtype=torch.float64) + 0.01
    weights = weights / weights.sum()
    labels = torch.randint(classes, (8,), generator=stream)
    sets = nn.functional.one_hot(predicted, classes).bool()
    losses = vote_loss(torch.stack([loss(one, labels) for one in sets]), weights)
    pairs = incorrect_pairs(labels, classes)
    sure = (losses.masked_fill(~pairs, -1.0) < -1e-12).all(dim=1)
    votes = vote_scores(predicted, weights, classes)
    assert bool((votes.argmax(dim=1) == labels)[sure].all())


def linear_member(weights: Tensor, bias: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda image: image.flatten(1).to(weights) @ weights.T + bias


@pytest.mark.parametrize("norm", ["linf", "l2"])
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_the_exact_checker_agrees_with_exhaustive_search(norm: str, seed: int) -> None:
    """In the plane: labels at 20,000 points of the ball are all reached; what is reached is met on a larger ball."""
    stream = torch.Generator().manual_seed(seed)
    weights = torch.randn(3, 2, generator=stream, dtype=torch.float64)
    bias = 0.3 * torch.randn(3, generator=stream, dtype=torch.float64)
    image = torch.rand(4, 1, 1, 2, generator=stream, dtype=torch.float64)
    labels = torch.randint(3, (4,), generator=stream)
    member, delta = linear_member(weights, bias), 0.3
    checker = LinearChecker(norm, delta)
    reached, checked = checker.reached(member, image, labels), checker.check(member, image, labels)
    inside, larger = (_seen(member, image, _ball_points(norm, radius)) for radius in (delta, 1.02 * delta))
    assert bool((reached | ~inside).all())
    assert bool((larger | ~reached).all())
    fooled = ova_loss(reached, labels) > 0
    assert torch.equal(checked.vulnerable, fooled)
    _check_perturbations(member, image, labels, checked.vulnerable, checked.perturbation, norm, delta)


def _ball_points(norm: str, radius: float) -> Tensor:
    side = np.linspace(-radius, radius, 141)
    points = torch.tensor(np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2))
    angles = torch.linspace(0, 2 * math.pi, 400, dtype=torch.float64)
    rim = radius * torch.stack([angles.cos(), angles.sin()], dim=1)
    return points if norm == "linf" else torch.cat([points[points.norm(dim=1) <= radius], rim])


def _seen(member: Callable[[Tensor], Tensor], image: Tensor, points: Tensor) -> Tensor:
    labels = [member((row.flatten() + points).view(-1, 1, 1, 2)).argmax(dim=1) for row in image]
    return torch.stack([torch.bincount(found, minlength=3) > 0 for found in labels])


def _check_perturbations(
    member: Callable[[Tensor], Tensor],
    image: Tensor,
    labels: Tensor,
    vulnerable: Tensor,
    perturbation: Tensor,
    norm: str,
    delta: float,
) -> None:
    """Each z is in the ball, and y does not win there."""
    order = math.inf if norm == "linf" else 2
    assert bool((torch.linalg.vector_norm(perturbation.flatten(1), ord=order, dim=1) <= delta + 1e-6).all())
    scores = member(image + perturbation)
    own = scores.gather(1, labels[:, None])
    beaten = (scores.masked_fill(~incorrect_pairs(labels, scores.shape[1]), -math.inf) >= own - 1e-6).any(dim=1)
    assert bool(beaten[vulnerable].all())


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_pgd_never_claims_more_than_the_exact_checker(norm: str) -> None:
    """Perturbations that PGD finds are real, so its losses are at most the exact ones, and near them here."""
    stream = torch.Generator().manual_seed(3)
    weights, bias = torch.randn(4, 6, generator=stream), 0.1 * torch.randn(4, generator=stream)
    image = 0.35 + 0.3 * torch.rand(40, 1, 2, 3, generator=stream)  # delta away from the limits of pixels
    member, delta = linear_member(weights, bias), {"linf": 0.08, "l2": 0.2}[norm]
    labels = torch.where(torch.arange(40) % 4 > 0, member(image).argmax(dim=1), 0)
    exact = LinearChecker(norm, delta).reached(member, image, labels)
    attack = PgdAttack(norm, delta, steps=40, step_scale=4.0, restarts=2)
    found = PgdChecker(attack, seed=(1,), targeted=True).reached(member, image, labels)
    assert bool((exact | ~found).all())
    assert bool((robust_loss(found, labels) <= robust_loss(exact, labels)).all())
    assert float((ova_loss(found, labels) == ova_loss(exact, labels)).double().mean()) >= 0.9
    checked = PgdChecker(attack, seed=(1,)).check(member, image, labels)
    _check_perturbations(member, image, labels, checked.vulnerable, checked.perturbation, norm, delta)
    assert 0 < int(checked.vulnerable.sum()) < len(labels)


def test_pgd_overlooks_nothing_at_the_image_itself() -> None:
    """The definition with c infinite: an example that is wrong unperturbed gets an answer, whatever the attack does."""
    blind = PgdChecker(PgdAttack("linf", 0.1, steps=1, restarts=0), seed=(0,))
    image, labels = torch.rand(10, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.arange(10) % 2
    member = linear_member(torch.zeros(2, 4), torch.tensor([1.0, 0.0]))
    checked = blind.check(member, image, labels)
    assert torch.equal(checked.vulnerable, labels == 1)
    assert float(checked.perturbation.abs().max()) == 0.0


def test_the_smoothed_checker_sees_the_mean_scores() -> None:
    """With noise of a known stream, h is the argmax of mean scores: for a linear member, a shifted linear one."""
    weights, image = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[[[0.6, 0.5]]], [[[0.5, 0.45]]]])
    attack = PgdAttack("l2", 0.05, step_scale=4.0, sigma=1e-4, copies=4, smoothing="scores")
    labels = torch.tensor([0, 0])
    found = PgdChecker(attack, seed=(2,)).check(linear_member(weights, torch.zeros(2)), image, labels)
    assert found.vulnerable.tolist() == [False, True]  # 0.1/sqrt(2) > 0.05 > 0.05/sqrt(2)


def test_the_exact_checker_refuses_what_is_not_linear() -> None:
    with pytest.raises(TrainingError, match="linear in the pixels"):
        LinearChecker("l2", 0.1).check(
            lambda image: image.flatten(1).square(),
            torch.rand(3, 1, 1, 2, generator=torch.Generator().manual_seed(0)),
            torch.zeros(3),
        )


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), gamma=st.floats(0.0, 0.9))
def test_lemma_apx_weak_learner(seed: int, gamma: float) -> None:
    """A member that is found has the edge on the ball of delta/c; None certifies that no candidate has it on delta."""
    stream = torch.Generator().manual_seed(seed)
    image, labels = torch.rand(6, 1, 1, 3, generator=stream), torch.randint(2, (6,), generator=stream)
    weights = torch.rand(6, generator=stream, dtype=torch.float64)
    distribution = weights / weights.sum()
    candidates = [linear_member(torch.randn(2, 3, generator=stream), torch.zeros(2)) for _ in range(3)]
    delta, c = 0.1, 2.0
    inner, outer = LinearChecker("linf", delta / c), LinearChecker("linf", delta)

    def middling(member: Callable[[Tensor], Tensor]) -> Tensor:
        """A (2, delta)-approximate checker: between the two balls it answers by the number of the example."""
        near, far = (one.check(member, image, labels).vulnerable for one in (inner, outer))
        return near | (far & (torch.arange(6) % 2 == 0))

    found = find_weak_member(candidates, middling, distribution, gamma=gamma)

    def ova(checker: LinearChecker, member: Callable[[Tensor], Tensor]) -> float:
        return ova_error(checker.reached(member, image, labels), labels, distribution)

    if found is None:
        assert all(ova(outer, member) > -gamma for member in candidates)
    else:
        assert ova(inner, found.member) <= -gamma + 1e-9
        assert found.edge >= gamma


def test_errors_are_expectations() -> None:
    losses = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    assert error(losses, torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)) == -0.25
