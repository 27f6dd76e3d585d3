"""Training batches: which images in which order, on the device, in [0,1], augmented."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from robustinfer.errors import DataError

from ..machine.processes import Processes
from ..machine.randomness import Draws, generator
from ..recipe import Recipe
from .balance import balanced_order, image_weights
from .datasets import ImageData

__all__ = ["Batch", "Batches", "as_pixels", "check_batch", "in_order", "numbers_in_order"]


@dataclass(frozen=True)
class Batch:
    """One batch on its device: pixels in [0,1], labels, and f_s(x) of each frozen member s if they are at hand.

    `numbers` says which images of the data set it holds. `weights` say how much each counts in the loss, where that
    differs. `kept` are the perturbed images, where perturbations are kept
    from epoch to epoch: a leaf that gathers the gradient of the loss, by which they move on.
    """

    image: Tensor
    labels: Tensor
    offsets: Tensor | None = None
    numbers: Tensor | None = None
    weights: Tensor | None = None
    kept: Tensor | None = None


def as_pixels(images: Tensor, device: torch.device, *, channels_last: bool = False) -> Tensor:
    """uint8 images as float32 in [0,1] on the device."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return images.to(device).float().div_(255).to(memory_format=layout)


def numbers_in_order(total: int, size: int) -> Iterator[Tensor]:
    """The numbers 0 ... total - 1 in pieces of `size`, the last one possibly smaller."""
    for start in range(0, total, size):
        yield torch.arange(start, min(start + size, total))


def in_order(
    data: ImageData, size: int, processes: Processes, *, channels_last: bool = False
) -> Iterator[tuple[int, Batch]]:
    """Each image once, in the order of the data set: numbered batches of `size`, the last one possibly smaller.

    Batch b belongs to process b mod world, and only that process meets it; random streams are keyed by b, so that
    nothing depends on how many processes there are. A process that stands alone may be asked to stop before each batch.
    """
    for number, numbers in enumerate(numbers_in_order(len(data), size)):
        if processes.world == 1:
            processes.leave_if_asked()
        if number % processes.world == processes.rank:
            image = as_pixels(data.take(numbers), processes.device, channels_last=channels_last)
            yield number, Batch(image, data.labels[numbers].to(processes.device), numbers=numbers)


def check_batch(recipe: Recipe, data: ImageData, processes: Processes) -> None:
    """Refuse a batch that cannot be filled, or that the processes cannot share evenly."""
    if len(data) < recipe.batch:
        raise DataError(f"A batch of {recipe.batch} images needs as many to train on; {data.name} leaves {len(data)}.")
    processes.rows(recipe.batch)


class Batches:
    """The batches of one stage: a new order each epoch, whole batches only, each shared by all processes.

    What does not fill a batch at the end of an epoch is left out; the order differs in the next one. Classes are
    balanced as the recipe says: by weights of the rows, or by how often their images come (`balance.py`).
    """

    def __init__(self, recipe: Recipe, stage: int, data: ImageData, processes: Processes) -> None:
        self.recipe, self.stage, self.data, self.processes = recipe, stage, data, processes
        self.rows = processes.rows(recipe.batch)
        self.steps = len(data) // recipe.batch
        self.offsets: Tensor | None = None
        balance = recipe.balance if recipe.balance == "loss" else "none"
        self.weights = image_weights(data.labels, len(data.classes), balance)
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def batch(self, epoch: int, step: int) -> Batch:
        """The rows of this process of one batch."""
        numbers = self._epoch_order(epoch)[step * self.recipe.batch : (step + 1) * self.recipe.batch][self.rows]
        image = as_pixels(self.data.take(numbers), self.processes.device, channels_last=self.recipe.channels_last)
        if self.recipe.augment != "none":
            image = _augment(image, self.draws(epoch, step, purpose=1), flip=self.recipe.augment == "crop-flip")
        labels = self.data.labels[numbers].to(self.processes.device)
        offsets = None if self.offsets is None else self.offsets[:, numbers].to(self.processes.device)
        weights = None if self.weights is None else self.weights[numbers].float().to(self.processes.device)
        return Batch(image, labels, offsets, numbers, weights)

    def draws(self, epoch: int, step: int, *, purpose: int = 0) -> Draws:
        """The random numbers of one step."""
        key = (self.recipe.seed, self.stage, epoch, step, purpose)
        return Draws(*key, device=self.processes.device, rows=self.rows, total=self.recipe.batch)

    def _epoch_order(self, epoch: int) -> Tensor:
        if self._order[0] != epoch:
            stream = generator(self.recipe.seed, self.stage, epoch)
            if self.recipe.balance == "sample":
                self._order = (epoch, balanced_order(self.data.labels, stream))
            else:
                self._order = (epoch, torch.randperm(len(self.data), generator=stream))
        return self._order[1]


def _augment(image: Tensor, draws: Draws, *, flip: bool) -> Tensor:
    """Shift each image by up to an eighth of its side (4 pixels of 32), and mirror half of them."""
    count, _, height, width = image.shape
    pad = max(1, height // 8)
    padded = functional.pad(image, (pad, pad, pad, pad))
    shape = torch.Size((count, 1))
    down, right = draws.integers(2 * pad + 1, shape), draws.integers(2 * pad + 1, shape)
    rows = down + torch.arange(height, device=image.device)
    columns = right + torch.arange(width, device=image.device)
    if flip:
        mirrored = draws.integers(2, shape) == 1
        columns = torch.where(mirrored, columns.flip(1), columns)
    each = torch.arange(count, device=image.device).view(-1, 1, 1)
    # Indices around the channel axis put it last: bring it back to its place.
    return padded[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
