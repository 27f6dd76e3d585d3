"""CAT-RS against its definition, image by image and copy by copy, and where everything or nothing is right."""

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from robust.train import Ensemble, Recipe, train
from robust.train.data.batches import Batch
from robust.train.data.datasets import load_data
from robust.train.machine.randomness import Draws
from robust.train.stage.confidence import ConfidenceObjective, SoftTargets, soft_targets
from robust.train.stage.objective import StageModel
from scipy.special import log_softmax, rel_entr
from scipy.special import softmax as softmax_of
from torch import Tensor, nn

from robustinfer.errors import RecipeError

IMAGES, COPIES, CLASSES, SIGMA, DELTA, STEPS, SCALE, STRENGTH = 6, 4, 3, 0.5, 0.8, 2, 2.0, 0.7


def recipe(**fields: Any) -> Recipe:
    values = {
        "norm": "l2",
        "delta": DELTA,
        "steps": STEPS,
        "step_scale": SCALE,
        "smoothing": "cat-rs",
        "sigma": SIGMA,
        "noise_samples": COPIES,
        "confidence": STRENGTH,
        "previous": "exact",
        **fields,
    }
    return Recipe.from_json(values)


class Curved(nn.Module):
    """A small network with fixed parameters, in double precision, that batch statistics do not change."""

    def __init__(self, seed: int, classes: int = CLASSES) -> None:
        super().__init__()
        stream = torch.Generator().manual_seed(seed)
        self.inner = nn.Parameter(torch.randn(4, 5, generator=stream, dtype=torch.float64))
        self.outer = nn.Parameter(2 * torch.randn(5, classes, generator=stream, dtype=torch.float64))

    def forward(self, image: Tensor) -> Tensor:
        return torch.tanh(image.flatten(1).double() @ self.inner) @ self.outer


class Fixed(nn.Module):
    """The same scores for every image, from a parameter."""

    def __init__(self, scores: list[float]) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.tensor(scores))

    def forward(self, image: Tensor) -> Tensor:
        return self.scores.expand(len(image), -1)


def batch() -> Batch:
    image = torch.rand(IMAGES, 1, 2, 2, generator=torch.Generator().manual_seed(3))
    return Batch(image, torch.tensor([0, 1, 2, 0, 1, 2]), numbers=torch.arange(IMAGES))


def targets() -> SoftTargets:
    stream = torch.Generator().manual_seed(4)
    return SoftTargets(torch.randn(IMAGES, CLASSES, generator=stream).softmax(1), torch.linspace(0, 1, IMAGES))


def objective(given: Recipe, member: nn.Module, past: Ensemble | None, soft: SoftTargets | None) -> ConfidenceObjective:
    before = torch.zeros(0) if past is None else past.betas
    model = StageModel(member, beta=0.5, previous=before, corrective=False, learn_beta=True)
    return ConfidenceObjective(given, model, past, targets=soft, precision=nullcontext)


def noise_and_trials(draws: Draws) -> tuple[Tensor, Tensor]:
    noise = draws.normal(torch.Size((IMAGES, COPIES, 1, 2, 2))) * SIGMA
    return noise, draws.uniform(torch.Size((IMAGES, COPIES)))


def like(z: Tensor, noise: Tensor) -> Tensor:
    """The mean and the root mean square of the noise; two equations for a shift and a factor."""
    factor = (noise.var(correction=0) / z.var(correction=0)).sqrt()
    return noise.mean() + factor * (z - z.mean())


def slow_loss(found: ConfidenceObjective, soft: SoftTargets | None, given: Batch) -> float:
    """The definition with loops."""
    member, past = found.model.member, found.past

    def scores(x: Tensor) -> Tensor:
        total: Tensor = 0.5 * member(x[None])[0].float()
        return total if past is None else total + past(x[None])[0].float()

    def divergence(x: Tensor, target: Tensor) -> Tensor:
        return (target * (target.clamp_min(1e-30).log() - torch.log_softmax(scores(x), 0))).sum()

    noise, uniform = noise_and_trials(Draws(9))
    losses = []
    for i in range(IMAGES):
        x, y = given.image[i], int(given.labels[i])
        right = sum(int(scores(x + e).argmax()) == y for e in noise[i]) / COPIES
        asked = max(1, sum(bool(u < right) for u in uniform[i]))
        entropies = sorted(-log_softmax(scores(x + e).detach().numpy())[y] for e in noise[i])
        loss = sum(entropies[:asked]) / COPIES
        if asked == COPIES:
            target = torch.eye(CLASSES)[y] if soft is None else soft.probabilities[i]
            worst = []
            for e in noise[i]:
                z = e.clone()
                for _ in range(STEPS):
                    point = z.clone().requires_grad_()
                    (gradient,) = torch.autograd.grad(divergence(x + point, target), point)
                    far = z - e + SCALE * DELTA / STEPS * gradient / gradient.norm()
                    z = like(e + far * min(1.0, DELTA / float(far.norm())), e)
                answers = softmax_of(scores(x + z).detach().double().numpy())
                worst.append(rel_entr(target.double().numpy(), answers).sum())
            loss += STRENGTH * max(worst)
        losses.append(loss)
    return float(sum(losses) / IMAGES)


@pytest.mark.parametrize("previous", [False, True])
@pytest.mark.parametrize("taught", [False, True])
def test_the_loss_is_that_of_its_definition_written_with_loops(previous: bool, taught: bool) -> None:
    past = Ensemble([Curved(1)], [0.3]).freeze() if previous else None
    soft = targets() if taught else None
    found = objective(recipe(), Curved(0), past, soft)
    asked = found._asked(
        found._confidence(batch(), noise_and_trials(Draws(9))[0].transpose(0, 1), None, DELTA), Draws(8)
    )
    assert 1 <= asked.min() < asked.max() <= COPIES  # else this test would say nothing about K
    expected = slow_loss(found, soft, batch())
    assert found.loss(batch(), draws=Draws(9), delta=DELTA, steps=STEPS).item() == pytest.approx(expected, rel=1e-4)


def test_where_all_copies_are_right_all_count_and_the_worst_is_added() -> None:
    """Scores that ignore the image: every noise gives them, and p_conf is 1 for the label 0."""
    given = dataclasses.replace(batch(), labels=torch.zeros(IMAGES, dtype=torch.int64))
    soft = targets()
    found = objective(recipe(attack="none"), Fixed([4.0, 0.0, 2.0]), None, soft)
    answers = torch.tensor([2.0, 0.0, 1.0]).log_softmax(0)  # beta is 0.5
    divergences = (soft.probabilities * (soft.probabilities.log() - answers)).sum(1)
    loss = found.loss(given, draws=Draws(9), delta=DELTA, steps=STEPS)
    assert loss.item() == pytest.approx(float(-answers[0] + STRENGTH * divergences.mean()), rel=1e-5)


def test_where_no_copy_is_right_only_the_easiest_counts() -> None:
    """A fourth class that never has the largest score is the label of all: K = 1, and nothing is attacked."""
    member = nn.Sequential(Curved(0), nn.ConstantPad1d((0, 1), -50.0))
    found = objective(recipe(), member, None, None)
    given = dataclasses.replace(batch(), labels=torch.full((IMAGES,), CLASSES))
    noise, _ = noise_and_trials(Draws(9))
    scores = 0.5 * member((given.image[:, None] + noise).flatten(0, 1)).view(IMAGES, COPIES, CLASSES + 1)
    smallest = -scores.detach().log_softmax(2)[:, :, CLASSES].amax(dim=1)
    loss = found.loss(given, draws=Draws(9), delta=DELTA, steps=STEPS)
    assert loss.item() == pytest.approx(float(smallest.mean() / COPIES), rel=1e-5)


def test_a_past_that_ignores_the_image_is_the_same_in_every_mode() -> None:
    losses = []
    for previous in ("clean", "adversarial", "exact"):
        past = Ensemble([Fixed([0.5, 0.0, -0.5])], [2.0]).freeze()
        found = objective(recipe(previous=previous, own_loss=0.25), Curved(0), past, targets())
        losses.append(found.loss(batch(), draws=Draws(9), delta=DELTA, steps=STEPS).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert losses[0] == pytest.approx(losses[2], rel=1e-6)


def test_moved_noise_still_looks_like_noise_and_climbs() -> None:
    found, given, sure = objective(recipe(), Curved(0), None, targets()), batch(), torch.arange(IMAGES)
    noise = noise_and_trials(Draws(9))[0].transpose(0, 1)
    moved = found._moved(given, sure, noise, None, delta=DELTA, steps=STEPS)
    for power in (1, 2):
        torch.testing.assert_close(moved.pow(power).mean(dim=(2, 3, 4)), noise.pow(power).mean(dim=(2, 3, 4)))
    before, after = (
        found._divergence(0.5 * found.model.member(found._points(given.image, z)).float(), given, sure)
        for z in (noise, moved)
    )
    assert after.mean() > before.mean()
    assert found.model.training
    assert all(parameter.requires_grad for parameter in found.model.member.parameters())


@pytest.mark.parametrize("taught", [False, True])
def test_a_cold_start_has_the_confidence_of_the_targets(taught: bool) -> None:
    soft = targets() if taught else None
    found = objective(recipe(), Curved(0), None, soft)
    confidence = found._confidence(batch(), torch.zeros(COPIES, IMAGES, 1, 2, 2), None, DELTA / 2)
    assert confidence.tolist() == (targets().confidence.tolist() if taught else [1.0] * IMAGES)
    # Then K follows it: 1 where it is 0, M where it is 1, and about M times as much in between.
    counts = torch.stack([found._asked(torch.tensor([0.0, 0.5, 1.0]), Draws(seed)) for seed in range(400)]).double()
    assert counts[:, 0].unique().tolist() == [1.0]
    assert counts[:, 2].unique().tolist() == [float(COPIES)]
    assert counts[:, 1].mean().item() == pytest.approx(COPIES / 2 + 1 / 2**COPIES, abs=0.3)  # six deviations


def test_a_kept_perturbation_gets_the_gradient_of_sure_images_only() -> None:
    """Half of the images are right at every copy and half at none; the member is steep enough for both."""
    stream = torch.tensor([[6.0, -6.0]]).repeat(4, 1)

    class Steep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(stream.clone())

        def forward(self, image: Tensor) -> Tensor:
            return (image.flatten(1) - 0.5) @ self.weights

    image = torch.tensor([0.9, 0.1, 0.9, 0.1]).view(4, 1, 1, 1).expand(4, 1, 2, 2).clone()
    x = (image + torch.tensor([[0.01, 0.02], [0.0, -0.01]])).requires_grad_()
    given = Batch(image, torch.tensor([0, 0, 1, 1]), numbers=torch.arange(4), kept=x)
    found = objective(recipe(attack="kept", epochs=2, sigma=0.01), Steep(), None, None)
    found.loss(given, draws=Draws(9), delta=DELTA, steps=1).backward()
    assert x.grad is not None
    assert [bool(row.abs().sum() > 0) for row in x.grad] == [True, False, False, True]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"noise_samples": 1}, "noise_samples of at least 2 .4 is usual.; found 1"),
        ({"consistency": 1.0}, "regulariser of its own"),
        ({"booster": "minimax"}, "needs another one"),
        ({"smoothing": "gaussian", "teacher": "runs/gaussian"}, "`teacher` gives soft targets"),
        ({"confidence": -1.0}, "`confidence` is a number at least 0"),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        recipe(**fields)


def test_a_run_with_a_teacher_and_heads_without(tiny: Recipe, tmp_path: Path) -> None:
    """From a Gaussian run to soft targets to a student of it; then boosting, whose targets are the ensemble so far."""
    smoothed = tiny.replace(norm="l2", delta=0.5, smoothing="gaussian", sigma=0.25, stages=1, refit=False)
    teacher = train(smoothed, tmp_path / "teacher")
    aware = smoothed.replace(smoothing="cat-rs", noise_samples=3, teacher=str(teacher.path), steps=1)
    run = train(aware, tmp_path / "student")
    assert run.finished
    assert run.recipe.teacher == str(teacher.path)
    data = load_data("digits").head(40)
    found = soft_targets(aware, None, data, torch.device("cpu"))
    assert found is not None
    torch.testing.assert_close(found.probabilities.sum(1), torch.ones(40))
    again = soft_targets(aware.replace(teacher=""), teacher.ensemble(), data, torch.device("cpu"))
    assert again is not None
    assert torch.equal(found.probabilities, again.probabilities)
    assert soft_targets(aware.replace(teacher=""), None, data, torch.device("cpu")) is None
    boosted = train(aware.replace(teacher="", stages=2, ramp=0.5), tmp_path / "boosted")
    assert [stage.number for stage in boosted.stages] == [1, 2]
    with pytest.raises(RecipeError, match="A teacher has the classes and images"):
        train(aware.replace(data="npz:" + str(_other_images(tmp_path)), limit=0), tmp_path / "refused")


def _other_images(folder: Path) -> Path:
    stream = np.random.default_rng(0)
    x = stream.integers(0, 256, (400, 9, 9), dtype=np.uint8)
    np.savez(folder / "other.npz", x_train=x, y_train=np.arange(400) % 10, x_test=x[:10], y_test=np.arange(10))
    return folder / "other.npz"
