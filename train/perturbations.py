"""Perturbations kept from epoch to epoch: adversarial training for little more than the price of plain training.

An attack that starts anew in every step pays for each of its own steps with a pass through the network. Here each image
keeps its perturbation, and the backward pass of the training step, which is paid for anyway, also gives the gradient by
which the perturbation takes one step an epoch (Shafahi et al. 2019 use that gradient, Zheng et al. 2020 keep the
perturbation). With a smoothed recipe the noise differs each time: over the epochs the perturbation follows the mean.
"""

import dataclasses

import torch

from robustinfer.errors import RecipeError

from .data import ImageData
from .objective import Batch
from .processes import Processes
from .recipe import Recipe
from .threat import ball

__all__ = ["Perturbations"]

_BYTES = 2**33  # of memory, at most


class Perturbations:
    """One perturbation for each training image, all zero when a stage begins; in half precision, to take less memory.

    The step is that of the whole objective, regulariser included, with batch normalisation as it is while training:
    the price for taking it from the pass that trains.
    """

    def __init__(self, recipe: Recipe, data: ImageData, processes: Processes) -> None:
        if processes.world > 1:
            raise RecipeError(
                'The setting attack = "kept" needs all perturbations in one process, and this training has '
                f'{processes.world}: take attack = "pgd" with few steps.'
            )
        needed = 2 * len(data) * data.input.size
        if needed > _BYTES:
            raise RecipeError(
                f'The setting attack = "kept" takes {needed / 2**30:.0f} GiB of memory for {len(data)} images, and at '
                f'most {_BYTES / 2**30:.0f} GiB are used: take attack = "pgd" with few steps.'
            )
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
