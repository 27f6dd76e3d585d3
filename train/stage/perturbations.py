"""Perturbations kept from epoch to epoch: adversarial training for little more than the price of plain training.

An attack that starts anew in every step pays for each of its own steps with a pass through the network. Here each image
keeps its perturbation, and the backward pass of the training step, which is paid for anyway, also gives the gradient by
which the perturbation takes one step an epoch (Shafahi et al. 2019 use that gradient, Zheng et al. 2020 keep the
perturbation). With a smoothed recipe the noise differs each time: over the epochs the perturbation follows the mean.
"""

import dataclasses

import torch

from robustinfer.errors import RecipeError

from ..attacks.balls import ball
from ..data.batches import Batch
from ..data.datasets import ImageData
from ..machine.processes import Processes
from ..recipe import Recipe

__all__ = ["Perturbations", "check_perturbations", "perturbation_bytes"]

_MOST_BYTES = 2**33


def perturbation_bytes(recipe: Recipe, data: ImageData) -> int:
    """What one copy of the perturbations takes, in memory or in a checkpoint."""
    return 2 * len(data) * data.input.size if recipe.keeps_perturbations else 0


def check_perturbations(recipe: Recipe, data: ImageData, processes: Processes) -> None:
    """Refuse what cannot be kept."""
    if recipe.keeps_perturbations and processes.world > 1:
        raise RecipeError(
            'The field attack = "kept" needs all perturbations in one process, and this training has '
            f'{processes.world}: use attack = "pgd" with few steps.'
        )
    needed = perturbation_bytes(recipe, data)
    if needed > _MOST_BYTES:
        raise RecipeError(
            f'The field attack = "kept" takes {needed / 2**30:.1f} GiB for the perturbations of {len(data)} images, '
            f'more than the {_MOST_BYTES / 2**30:.0f} GiB allowed: set `limit`, or use attack = "pgd" with few steps.'
        )


class Perturbations:
    """One perturbation for each training image, all zero when a stage begins; in half precision, to take less memory.

    A step is as long as one of PGD with the same numbers: after `steps` epochs it has gone as far as PGD in one. It
    climbs the whole objective, regularisers included, with batch normalisation as it is while training: the price for
    taking it from the pass that trains. The guard against catastrophic overfitting does not watch it, for its remedy,
    more steps, is not to be had; steps of a fraction of delta are what keeps it away.
    """

    def __init__(self, recipe: Recipe, data: ImageData) -> None:
        self.recipe = recipe
        self.kept = torch.zeros(len(data), *data.input.shape, dtype=torch.float16)

    def start(self, batch: Batch, delta: float) -> Batch:
        """The batch with its perturbed images, brought into the ball of this radius."""
        if delta == 0:  # a radius that grows starts with no ball at all
            return batch
        kept = self.kept[batch.numbers].to(batch.image)
        x = ball(self.recipe.norm, delta).clip(batch.image + kept, batch.image)
        return dataclasses.replace(batch, kept=x.requires_grad_())

    def move(self, batch: Batch, delta: float) -> None:
        """One step up the gradient that the backward pass of the loss has left at the perturbed images."""
        if batch.kept is None or batch.kept.grad is None:
            return
        within, recipe = ball(self.recipe.norm, delta), self.recipe
        step = within.ascend(batch.kept.grad, recipe.step_scale * delta / recipe.steps)
        x = within.clip(batch.kept.detach() + step, batch.image)
        self.kept[batch.numbers] = (x - batch.image).to(self.kept)
