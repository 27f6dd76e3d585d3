"""Accuracy, clean and attacked, counted over a data set that all processes share."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..data.batches import in_order
from ..data.datasets import ImageData
from ..machine.processes import Processes
from ..machine.randomness import Draws
from ..recipe import Recipe
from .balls import ball
from .losses import example_loss
from .pgd import pgd

__all__ = ["Accuracy", "PgdAttack", "attacked_points", "measure"]

_BATCH = 500


@dataclass(frozen=True)
class PgdAttack:
    """`restarts` runs of PGD, each of `steps` steps of length `step_scale` delta/steps from a random start.

    The best of the restarts counts: an image is robust if none of them changes its label. With `sigma`, the attacked
    prediction is that of the mean scores over `copies` noise vectors, which the attack knows.
    """

    norm: str
    delta: float
    steps: int = 10
    step_scale: float = 1.3
    restarts: int = 1
    sigma: float = 0.0
    copies: int = 1
    smoothing: str = "none"

    @classmethod
    def of(cls, recipe: Recipe, *, steps: int = 10, restarts: int = 1) -> "PgdAttack":
        """The attack a recipe's training measures itself by."""
        return cls(
            norm=recipe.norm,
            delta=recipe.delta,
            steps=max(steps, recipe.steps),
            step_scale=1.3,
            restarts=restarts,
            sigma=recipe.sigma,
            copies=recipe.noise_samples if recipe.smoothed else 1,
            smoothing="none" if recipe.smoothing in ("gaussian", "cat-rs") else recipe.smoothing,
        )


@dataclass(frozen=True)
class Accuracy:
    """Counts of one measurement; `predicted` is how often each class was the clean prediction.

    `by_class` has the images of each class and how many of them are robust, where that was counted.
    """

    images: int
    clean: int
    robust: int
    predicted: tuple[int, ...]
    by_class: tuple[tuple[int, int], ...] = ()

    @property
    def clean_accuracy(self) -> float:
        """Part of the images whose clean prediction is right."""
        return self.clean / max(1, self.images)

    @property
    def robust_accuracy(self) -> float:
        """Part of the images whose prediction is right and stays right under the attack."""
        return self.robust / max(1, self.images)

    @property
    def balanced_accuracy(self) -> float:
        """The mean over classes of each class's robust accuracy; classes without an image are left out."""
        rates = [robust / images for images, robust in self.by_class if images]
        return sum(rates) / max(1, len(rates))


def measure(
    scores: Callable[[Tensor], Tensor],
    data: ImageData,
    attack: PgdAttack,
    *,
    classes: int,
    processes: Processes,
    seed: tuple[int, ...],
    advance: Callable[[int], None] = lambda images: None,
) -> Accuracy:
    """Count right predictions on `data`; batch b is done by process b mod world and draws from a stream of its own."""
    counts = torch.zeros(2, dtype=torch.int64, device=processes.device)
    histograms = torch.zeros(3, classes, dtype=torch.int64, device=processes.device)
    for number, batch in in_order(data, _BATCH, processes):
        predicted, robust = _attacked(scores, batch.image, batch.labels, attack, (*seed, number))
        counts[0] += (predicted == batch.labels).sum()
        counts[1] += robust.sum()
        for row, labels in zip(histograms, (predicted, batch.labels, batch.labels[robust]), strict=True):
            row += torch.bincount(labels, minlength=classes)
        advance(len(batch.labels))
    processes.sum(counts)
    processes.sum(histograms)
    predicted_counts, images, kept = histograms.tolist()
    by_class = tuple(zip(images, kept, strict=True))
    return Accuracy(len(data), int(counts[0]), int(counts[1]), tuple(predicted_counts), by_class)


def _attacked(
    scores: Callable[[Tensor], Tensor], image: Tensor, labels: Tensor, attack: PgdAttack, seed: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """The clean predictions, and which rows stay right under every restart; only rows still right are attacked."""
    draws = Draws(*seed, device=image.device)
    with torch.no_grad():
        predicted = _scored(scores, image, _noise(image, attack, draws)).mean(dim=0).argmax(dim=1)
    robust = predicted == labels
    for _ in range(attack.restarts if attack.delta > 0 else 0):
        left = robust.nonzero().flatten()
        if not len(left):
            break
        points = attacked_points(scores, image[left], labels[left], attack, draws)
        with torch.no_grad():
            found = scores(points.flatten(0, 1)).view(len(points), len(left), -1).mean(dim=0).argmax(dim=1)
        robust[left] = found == labels[left]
    return predicted, robust


def attacked_points(
    scores: Callable[[Tensor], Tensor], image: Tensor, labels: Tensor, attack: PgdAttack, draws: Draws
) -> Tensor:
    """One run of the attack: the points the model sees, (copies, batch, ...), each perturbed image with its noise."""
    region, noise = ball(attack.norm, attack.delta), _noise(image, attack, draws)

    def loss(x: Tensor) -> Tensor:
        return example_loss(_scored(scores, x, noise), labels, attack.smoothing)

    length = attack.step_scale * attack.delta / attack.steps
    x = pgd(loss, image, ball=region, steps=attack.steps, step=length, draws=draws) if attack.delta > 0 else image
    return x[None] if noise is None else x + noise


def _noise(image: Tensor, attack: PgdAttack, draws: Draws) -> Tensor | None:
    if not attack.sigma:
        return None
    return draws.normal(torch.Size((attack.copies, *image.shape))).mul_(attack.sigma)


def _scored(scores: Callable[[Tensor], Tensor], x: Tensor, noise: Tensor | None) -> Tensor:
    """Scores of shape (copies, batch, classes)."""
    if noise is None:
        return scores(x)[None]
    return scores((x + noise).flatten(0, 1)).view(len(noise), len(x), -1)
