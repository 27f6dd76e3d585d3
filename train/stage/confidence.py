"""CAT-RS, confidence-aware training of smoothed classifiers (Jeong, Kim, Shin): an image is asked for what it can give.

An image x with label y is met at M = `noise_samples` noisy copies x + e_i. Its confidence p_conf is the share of them
that the network labels y at this moment, and K ~ Binomial(M, p_conf), but at least 1, says how much is asked of it:

* low: the sum of the K smallest of its M cross-entropies, divided by M. Noise that hides the label is not insisted on.
* high, only where K = M: the largest over i of KL(p_soft(x) | softmax f(x + e_i*)), where e_i* is e_i after `steps`
  steps of `step_scale` delta/steps up that divergence, within the l_2 ball of delta around e_i, and brought back to the
  mean and the root mean square of e_i after each of them, so that it still looks like noise.
* The loss of the image is low + `confidence` high, the lambda of the authors.

p_soft(x) is the smoothed answer of a network trained with Gaussian noise (`teacher`); without one, that of the ensemble
so far; in a first stage without one, the label itself, for which the divergence is the cross-entropy.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from robustinfer.errors import RecipeError

from ..attacks.balls import L2Ball
from ..attacks.pgd import frozen
from ..data.batches import Batch, in_order
from ..data.datasets import ImageData
from ..machine.processes import Processes
from ..machine.randomness import Draws
from ..members.ensemble import Ensemble
from ..recipe import Recipe
from ..runs.run import Run
from .objective import Objective, StageModel, weighted_mean

__all__ = ["ConfidenceObjective", "SoftTargets", "check_teacher", "soft_targets"]

_COPIES = 16  # noise vectors a soft target is averaged over
_BEFORE = 0  # key of the random stream that belongs to no stage


@dataclass(frozen=True)
class SoftTargets:
    """Of each training image, what a smoothed network answers, and how often it answers with the label."""

    probabilities: Tensor
    confidence: Tensor

    def probabilities_of(self, batch: Batch) -> Tensor:
        """p_soft of the images of a batch, on its device."""
        return self.probabilities[batch.numbers].to(batch.image.device)

    def confidence_of(self, batch: Batch) -> Tensor:
        """How often the source of the targets is right about the noisy images of a batch."""
        return self.confidence[batch.numbers].to(batch.image.device)


def check_teacher(recipe: Recipe, data: ImageData) -> None:
    """Refuse a teacher that does not know these classes or does not take these images."""
    if not recipe.teacher:
        return
    teacher = Run.open(recipe.teacher)
    if not teacher.stages:
        raise RecipeError(f"The teacher {recipe.teacher} has no finished stage yet: train it first.")
    if (teacher.classes, teacher.input.shape) != (data.classes, data.input.shape):
        raise RecipeError(
            f"A teacher has the classes and images of the training: {len(data.classes)} classes and images of shape "
            f"{data.input.shape}; {recipe.teacher} has {len(teacher.classes)} classes and {teacher.input.shape}, "
            "or other names for them."
        )


def soft_targets(recipe: Recipe, past: Ensemble | None, data: ImageData, device: torch.device) -> SoftTargets | None:
    """The targets of a stage, from its teacher or else the ensemble so far; None if there is neither.

    Every process needs all of them, and each computes them alone. The same recipe and data give the same ones.
    """
    source = Run.open(recipe.teacher).ensemble(device=device) if recipe.teacher else past
    if source is None:
        return None
    probabilities, confidence = [], []
    for number, batch in in_order(data, recipe.batch, Processes(device), channels_last=recipe.channels_last):
        draws = Draws(recipe.seed, _BEFORE, number, device=device)
        noise = (recipe.training_sigma * draws.normal(batch.image.shape) for _ in range(_COPIES))
        with torch.no_grad():
            scores = torch.stack([source(batch.image + z).float() for z in noise])
        probabilities.append(functional.softmax(scores, dim=-1).mean(dim=0))
        confidence.append((scores.argmax(dim=-1) == batch.labels).float().mean(dim=0))
    return SoftTargets(torch.cat(probabilities).cpu(), torch.cat(confidence).cpu())


class ConfidenceObjective(Objective):
    """The loss of CAT-RS for f^(t-1) + beta f_w.

    While delta still grows (the recipe's `ramp`), a network that starts from random parameters has no confidence of
    its own: then p_conf is that of the targets, or 1 without them.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: StageModel,
        past: Ensemble | None,
        *,
        targets: SoftTargets | None,
        precision: Callable[[], AbstractContextManager[object]],
    ) -> None:
        super().__init__(recipe, model, past, precision=precision)
        self.targets = targets

    def loss(self, batch: Batch, *, draws: Draws, delta: float, steps: int, model: nn.Module | None = None) -> Tensor:
        noise = self._noise(batch, draws)
        assert noise is not None
        offsets = self._clean_offsets(batch, noise)
        asked = self._asked(self._confidence(batch, noise, offsets, delta), draws)
        sure = (asked == self.copies).nonzero().flatten()
        moved = self._moved(batch, sure, noise[:, sure], offsets, delta=delta, steps=steps)
        # One pass for both terms: the copies of all images, then the moved ones of those with K = M.
        points = torch.cat([self._points(batch.image, noise), self._points(batch.image[sure], moved)])
        constant = offsets
        if offsets is not None:
            constant = torch.cat([part.repeat(1, self.copies, 1) for part in (offsets, offsets[:, sure])], dim=1)
        combined, own = self._trained(points, constant, model)
        loss = self._terms(combined, batch, asked, sure)
        if self.recipe.own_loss:
            share = self.recipe.own_loss
            loss = (1 - share) * loss + share * self._terms(own, batch, asked, sure)
        return weighted_mean(loss, batch)

    def _confidence(self, batch: Batch, noise: Tensor, offsets: Tensor | None, delta: float) -> Tensor:
        """p_conf of each image: by the network in evaluation mode, as it is attacked; at first by the targets."""
        count, device = len(batch.labels), batch.labels.device
        if delta < self.recipe.delta:
            return torch.ones(count, device=device) if self.targets is None else self.targets.confidence_of(batch)
        with frozen(self.model), torch.no_grad():
            scores = self._attacked_scores(self._points(batch.image, noise), self._repeat(offsets))
        right = scores.view(self.copies, count, -1).argmax(dim=-1) == batch.labels
        return right.float().mean(dim=0)

    def _asked(self, confidence: Tensor, draws: Draws) -> Tensor:
        """K of each image: how many of M trials with the probability p_conf succeed, but at least 1."""
        trials = draws.uniform(torch.Size((len(confidence), self.copies))) < confidence[:, None]
        return trials.sum(dim=1).clamp_min(1)

    def _moved(
        self, batch: Batch, sure: Tensor, noise: Tensor, offsets: Tensor | None, *, delta: float, steps: int
    ) -> Tensor:
        """e_i* of the images in `sure`, from their e_i, of shape (M, images, ...)."""
        if not self.recipe.attacked or delta == 0 or not len(sure):
            return noise
        if batch.kept is not None:  # one z for all copies of an image, which moves by the gradient of this step's loss
            return _like((batch.kept - batch.image)[sure] + noise, noise)
        ball, length = L2Ball(delta), self.recipe.step_scale * delta / steps
        constant = self._repeat(None if offsets is None else offsets[:, sure])
        z = noise
        with frozen(self.model):
            for _ in range(steps):
                z = z.detach().requires_grad_()
                with torch.enable_grad():
                    scores = self._attacked_scores(self._points(batch.image[sure], z), constant)
                    (gradient,) = torch.autograd.grad(self._divergence(scores, batch, sure).sum(), z)
                far = (z.detach() - noise).flatten(0, 1) + ball.ascend(gradient.flatten(0, 1), length)
                z = _like(noise + ball.project(far).view_as(noise), noise)
        return z

    def _terms(self, scores: Tensor, batch: Batch, asked: Tensor, sure: Tensor) -> Tensor:
        """low + lambda high of each image, from the scores at all copies and behind them those at the moved ones."""
        copies, count = self.copies, len(batch.labels)
        first, second = scores[: copies * count], scores[copies * count :]
        losses = functional.cross_entropy(first, batch.labels.repeat(copies), reduction="none").view(copies, count)
        smallest = losses.sort(dim=0).values
        counted = torch.arange(copies, device=asked.device)[:, None] < asked
        low = (smallest * counted).sum(dim=0) / copies
        high = self._divergence(second, batch, sure).amax(dim=0)
        return low.index_add(0, sure, self.recipe.confidence * high)

    def _divergence(self, scores: Tensor, batch: Batch, sure: Tensor) -> Tensor:
        """KL(p_soft | softmax f) at each copy of the images in `sure`, of shape (M, images)."""
        rows = scores.view(self.copies, len(sure), scores.shape[-1])
        answers = functional.log_softmax(rows, dim=-1)
        if self.targets is None:
            return -answers.gather(2, batch.labels[sure].expand(self.copies, -1)[:, :, None])[:, :, 0]
        soft = self.targets.probabilities_of(batch)[sure]
        return functional.kl_div(answers, soft.expand_as(answers), reduction="none").sum(dim=-1)


def _like(z: Tensor, noise: Tensor) -> Tensor:
    """z shifted and scaled, image by image, to the mean and the root mean square of the noise it came from."""
    pixels = tuple(range(2, z.ndim))
    mean, wanted = z.mean(dim=pixels, keepdim=True), noise.mean(dim=pixels, keepdim=True)
    spread = (z - mean).square().mean(dim=pixels, keepdim=True).sqrt().clamp_min(1e-12)
    return wanted + (z - mean) * ((noise - wanted).square().mean(dim=pixels, keepdim=True).sqrt() / spread)
