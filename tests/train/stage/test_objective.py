"""The objectives against a linear example computed by hand, and what a stage may and may not change."""

import math
from contextlib import nullcontext

import pytest
import torch
from robust.train import Ensemble, Recipe
from robust.train.attacks.accuracy import PgdAttack
from robust.train.attacks.losses import consistency_loss, example_loss
from robust.train.data.batches import Batch
from robust.train.machine.randomness import Draws
from robust.train.stage.objective import Objective, StageModel
from scipy.special import entr, rel_entr
from torch import Tensor, nn
from torch.nn import functional

from robustinfer.errors import RecipeError


class Scale(nn.Module):
    """Two classes of one pixel: scores (0, slope * x). Every supremum over a ball is at its end, by hand."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(float(slope)))

    def forward(self, image: Tensor) -> Tensor:
        score = self.slope * image.flatten(1)[:, 0]
        return torch.stack([torch.zeros_like(score), score], dim=1)


def recipe(previous: str, **fields: object) -> Recipe:
    values = {"norm": "linf", "delta": 0.2, "steps": 3, "start": "input", "previous": previous, **fields}
    return Recipe.from_json(values)


def objective(given: Recipe, *, past_slope: float = 3.0, new_slope: float = -5.0, beta: float = 0.5) -> Objective:
    past = Ensemble([Scale(past_slope)], [2.0]).freeze()
    model = StageModel(Scale(new_slope), beta=beta, previous=past.betas, corrective=False, learn_beta=True)
    return Objective(given, model, past, precision=nullcontext)


def softplus(value: float) -> float:
    return math.log1p(math.exp(value))


BATCH = Batch(torch.tensor([[[[0.5]]], [[[0.4]]]]), torch.tensor([1, 0]))


@pytest.mark.parametrize(
    ("previous", "expected"),
    [
        # f^(t-1)(x) = (0, 6 x), beta f_w(x) = (0, -2.5 x). Row 1 has x = 0.5 and label 1, so its loss is
        # softplus(-(s)) of the score s of class 1; row 2 has x = 0.4 and label 0, loss softplus(s).
        # clean, eq. (adv-greedy): s = 6 x + -2.5 (x + z): worst z is +0.2 for row 1 and -0.2 for row 2.
        ("clean", [softplus(-(6 * 0.5 - 2.5 * 0.7)), softplus(6 * 0.4 - 2.5 * 0.2)]),
        # adversarial: the same z, but f^(t-1) is taken at x + z.
        ("adversarial", [softplus(-(3.5 * 0.7)), softplus(3.5 * 0.2)]),
        # exact, eq. (greedy-step): s = 3.5 (x + z): worst z is -0.2 for row 1 and +0.2 for row 2.
        ("exact", [softplus(-(3.5 * 0.3)), softplus(3.5 * 0.6)]),
    ],
)
def test_the_three_objectives_on_a_linear_example(previous: str, expected: list[float]) -> None:
    found = objective(recipe(previous)).loss(BATCH, draws=Draws(0), delta=0.2, steps=3)
    assert found.item() == pytest.approx(sum(expected) / 2, rel=1e-6)


@pytest.mark.parametrize("previous", ["clean", "adversarial", "exact"])
def test_the_gradient_is_that_of_the_loss_at_the_found_point(previous: str) -> None:
    """d/dbeta and d/dslope of softplus at the fixed worst points; none for the frozen member."""
    found = objective(recipe(previous))
    loss = found.loss(BATCH, draws=Draws(0), delta=0.2, steps=3)
    loss.backward()
    points = {"clean": (0.7, 0.2), "adversarial": (0.7, 0.2), "exact": (0.3, 0.6)}[previous]
    at = (0.5, 0.4) if previous == "clean" else points
    scores = [6 * a - 2.5 * x for a, x in zip(at, points, strict=True)]
    sigmoid = [1 / (1 + math.exp(-s)) for s in scores]
    residual = [sigmoid[0] - 1, sigmoid[1]]
    slope = sum(r * 0.5 * x for r, x in zip(residual, points, strict=True)) / 2
    beta = sum(r * -5 * x for r, x in zip(residual, points, strict=True)) / 2
    member = found.model.member
    assert isinstance(member, Scale)
    assert member.slope.grad is not None
    assert found.model.beta.grad is not None
    assert member.slope.grad.item() == pytest.approx(slope, rel=1e-5)
    assert found.model.beta.grad.item() == pytest.approx(beta, rel=1e-5)
    assert found.past is not None
    assert all(parameter.grad is None for parameter in found.past.parameters())


def test_a_kept_perturbation_meets_the_whole_ensemble_in_exact_boosting_alone() -> None:
    """Row 1 has label 1. beta f_w = (0, -2.5x) alone makes its loss rise with x; with f^(t-1) = (0, 6x) it falls."""
    signs = {}
    for previous in ("clean", "adversarial", "exact"):
        x = BATCH.image[:1].clone().requires_grad_()
        batch = Batch(BATCH.image[:1], BATCH.labels[:1], kept=x)
        loss = objective(recipe(previous, attack="kept")).loss(batch, draws=Draws(0), delta=0.2, steps=1)
        loss.backward()
        assert x.grad is not None
        signs[previous] = float(x.grad.sign())
    assert signs == {"clean": 1.0, "adversarial": 1.0, "exact": -1.0}


def test_cached_offsets_and_computed_ones_give_the_same_loss() -> None:
    found = objective(recipe("clean"))
    assert found.past is not None
    cached = Batch(BATCH.image, BATCH.labels, found.past.stacked(BATCH.image))
    losses = [found.loss(batch, draws=Draws(0), delta=0.2, steps=3).item() for batch in (BATCH, cached)]
    assert losses[0] == losses[1]


def test_own_loss_mixes_in_the_members_own_robust_loss() -> None:
    pure = objective(recipe("exact")).loss(BATCH, draws=Draws(0), delta=0.2, steps=3).item()
    mixed = objective(recipe("exact", own_loss=0.25)).loss(BATCH, draws=Draws(0), delta=0.2, steps=3).item()
    own = (softplus(5 * 0.3) + softplus(-5 * 0.6)) / 2  # f_w = (0, -5 x) at the points that `exact` found
    assert mixed == pytest.approx(0.75 * pure + 0.25 * own, rel=1e-6)


def test_the_start_of_the_pseudo_code_is_a_saddle_point_and_ours_is_not() -> None:
    """beta = 0 and w = 0: both gradients vanish. The initial beta of a recipe is positive, so they do not."""
    gradients = []
    for beta, slope in ((0.0, 0.0), (1.0, 0.0)):
        found = objective(recipe("exact"), new_slope=slope, beta=beta)
        found.loss(BATCH, draws=Draws(0), delta=0.2, steps=3).backward()
        member = found.model.member
        assert isinstance(member, Scale)
        assert member.slope.grad is not None
        assert found.model.beta.grad is not None
        gradients.append((abs(member.slope.grad.item()), abs(found.model.beta.grad.item())))
    assert gradients[0] == (0.0, 0.0)
    assert gradients[1][0] > 0.01


def test_smoothed_losses_against_their_definitions() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 5, 4, generator=generator)
    labels = torch.tensor([0, 1, 2, 3, 0])
    rows = torch.arange(5)
    probabilities = functional.softmax(scores, dim=-1)
    expected = {
        "none": functional.cross_entropy(scores.mean(0), labels, reduction="none"),
        "scores": functional.cross_entropy(scores.mean(0), labels, reduction="none"),
        "softmax": -probabilities.mean(0)[rows, labels].log(),
        "gaussian": -probabilities.log().mean(0)[rows, labels],
    }
    for smoothing, value in expected.items():
        torch.testing.assert_close(example_loss(scores, labels, smoothing), value)


@pytest.mark.parametrize("scale", [1.0, 1.5])
@pytest.mark.parametrize("smoothing", ["scores", "softmax", "gaussian"])
def test_smoothed_objective_uses_the_recipes_noise(smoothing: str, scale: float) -> None:
    """Without an attack the smoothed loss of a linear member is the loss of its scores at the drawn noise."""
    given = recipe("exact", norm="l2", smoothing=smoothing, sigma=0.5, noise_samples=4, attack="none")
    given = given.replace(noise_scale=scale)
    model = StageModel(Scale(2.0), beta=1.0, previous=torch.zeros(0), corrective=False, learn_beta=True)
    found = Objective(given, model, None, precision=nullcontext)
    loss = found.loss(BATCH, draws=Draws(9), delta=0.2, steps=3)
    noise = Draws(9).normal(torch.Size((2, 4, 1, 1, 1))).transpose(0, 1) * 0.5 * scale
    scores = model.member((BATCH.image + noise).flatten(0, 1)).view(4, 2, 2)
    assert loss.item() == pytest.approx(example_loss(scores, BATCH.labels, smoothing).mean().item(), rel=1e-6)


def test_consistency_is_the_published_regulariser() -> None:
    """Against scipy: strength * mean KL(mean | copy) + entropy of the mean / 2, and that entropy alone if all agree."""
    scores = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    probabilities = scores.softmax(-1).numpy()
    mean = probabilities.mean(0)
    divergence = rel_entr(mean, probabilities).sum(-1).mean(0)
    expected = 7.0 * divergence + 0.5 * entr(mean).sum(-1)
    torch.testing.assert_close(consistency_loss(scores, 7.0), torch.from_numpy(expected))
    agreed = scores[:1].expand(3, 4, 5)
    torch.testing.assert_close(consistency_loss(agreed, 7.0), torch.from_numpy(0.5 * entr(probabilities[0]).sum(-1)))


def test_consistency_is_part_of_the_loss_of_a_stage() -> None:
    plain = recipe("exact", norm="l2", smoothing="gaussian", sigma=0.5, noise_samples=4, attack="none")
    model = StageModel(Scale(2.0), beta=1.0, previous=torch.zeros(0), corrective=False, learn_beta=True)

    def loss(given: Recipe) -> float:
        objective = Objective(given, model, None, precision=nullcontext)
        return objective.loss(BATCH, draws=Draws(9), delta=0.2, steps=3).item()

    noise = Draws(9).normal(torch.Size((2, 4, 1, 1, 1))).transpose(0, 1) * 0.5
    scores = model.member((BATCH.image + noise).flatten(0, 1)).view(4, 2, 2)
    added = loss(plain.replace(consistency=5.0)) - loss(plain)
    assert added == pytest.approx(consistency_loss(scores, 5.0).mean().item(), rel=1e-4)


def test_a_scale_of_the_noise_needs_noise_and_leaves_the_certified_sigma_alone() -> None:
    with pytest.raises(RecipeError, match="`noise_scale`"):
        recipe("exact", noise_scale=1.5)
    wider = recipe("exact", norm="l2", smoothing="gaussian", sigma=0.5, noise_scale=1.5)
    assert PgdAttack.of(wider).sigma == 0.5
    assert wider.training_sigma == 0.75


def test_consistency_needs_copies_to_compare() -> None:
    with pytest.raises(RecipeError, match="noise_samples of at least 2"):
        recipe("exact", norm="l2", smoothing="gaussian", sigma=0.5, noise_samples=1, consistency=1.0)
    with pytest.raises(RecipeError, match="needs smoothing"):
        recipe("exact", consistency=1.0)
