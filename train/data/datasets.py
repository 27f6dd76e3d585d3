"""Data sets: uint8 images and labels, with a digest that says which data a model has seen.

A set that fits into memory is one uint8 tensor; a larger one (ImageNet) is a list of files that are read as they are
needed. Both answer `take(indices)`. The test split is never seen by training: what a training measures itself on is
held out of the training split (`ImageData.split`).
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from robustinfer.card import InputSpec, Resize
from robustinfer.data import Source, choose, open_source, parse_data, source_labels

from .pixels import Pixels, TensorPixels, picture_input, picture_pixels, unreadable_numbers

__all__ = ["ImageData", "Model", "load_data"]

_SPLIT_SEED = 20210  # the held-out images are the same for every seed of a recipe, so runs can be compared


class Model(Protocol):
    """What a run and a card say about the images of a model."""

    @property
    def input(self) -> InputSpec: ...

    @property
    def classes(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class ImageData:
    """Images, labels and the names of the classes. `indices` chooses a part of the images, None all of them.

    Images of the same number in `groups` (frames of one track, slices of one patient) stay together in a split. `rule`
    says how test images were told from training images, if the set does not.
    """

    name: str
    pixels: Pixels
    labels: Tensor
    classes: tuple[str, ...]
    indices: Tensor | None = None
    resize: Resize = "refuse"
    groups: Tensor | None = None
    rule: str = ""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def input(self) -> InputSpec:
        """The images a model of this data takes."""
        channels, height, width = self.pixels.shape
        return InputSpec(channels, height, width, resize=self.resize)

    def take(self, numbers: Tensor) -> Tensor:
        """The uint8 images of these numbers."""
        return self.pixels.take(numbers if self.indices is None else self.indices[numbers])

    def subset(self, numbers: Tensor) -> "ImageData":
        """These images only."""
        indices = numbers if self.indices is None else self.indices[numbers]
        groups = None if self.groups is None else self.groups[numbers]
        return dataclasses.replace(self, labels=self.labels[numbers], indices=indices, groups=groups)

    def head(self, count: int) -> "ImageData":
        """The first `count` images, or all if there are fewer; of a set that lists class after class, as folders do,

        equally many of each class.
        """
        return self if count >= len(self) else self.subset(torch.from_numpy(choose(self.labels.numpy(), limit=count)))

    def split(self, fraction: float) -> tuple["ImageData", "ImageData"]:
        """Training and held-out images; the same ones for the same data and fraction. Groups stay whole."""
        if self.groups is not None:
            return self._split_groups(fraction)
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(_SPLIT_SEED))
        held_out = round(len(self) * fraction)
        return self.subset(order[held_out:].sort().values), self.subset(order[:held_out].sort().values)

    def _split_groups(self, fraction: float) -> tuple["ImageData", "ImageData"]:
        """Whole groups are held out until they have at least this fraction of the images."""
        assert self.groups is not None
        found = np.unique(self.groups.numpy(), return_counts=True)
        names, sizes = map(torch.from_numpy, found)
        order = torch.randperm(len(names), generator=torch.Generator().manual_seed(_SPLIT_SEED))
        before = sizes[order].cumsum(0) - sizes[order]
        chosen = names[order[before < round(len(self) * fraction)]]
        held_out = torch.isin(self.groups, chosen)
        return self.subset((~held_out).nonzero().flatten()), self.subset(held_out.nonzero().flatten())

    def digest(self) -> str:
        """The SHA-256 of images, labels and classes, as `sha256:` and 64 digits."""
        digest = hashlib.sha256(self.pixels.digest())
        digest.update(self.labels.numpy().tobytes())
        digest.update("\0".join(self.classes).encode())
        if self.indices is not None:
            digest.update(self.indices.numpy().tobytes())
        return f"sha256:{digest.hexdigest()}"

    def moments(self, count: int = 10_000) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each channel over the first `count` images, for the members' normalisation."""
        images = self.take(torch.arange(min(count, len(self)))).double() / 255
        return images.mean(dim=(0, 2, 3)).float(), images.std(dim=(0, 2, 3)).clamp_min(1e-3).float()


def load_data(
    name: str,
    *,
    split: str = "train",
    root: str | Path = "data",
    size: int = 0,
    model: Model | None = None,
    download: bool = False,
    skip_unreadable: int = 0,
    foreign: bool = False,
) -> ImageData:
    """The `train` or `test` split of a data set (`robustinfer.data.spec`), or `all` of it.

    `root` is where mnist, cifar10 and imagenet lie if their name does not say it. Files are read as `model` (a run or a
    card) takes them, with its classes; before there is a model, `size` is the side of its images. A model of arrays
    takes pictures of their size only, unless that is `size`. Up to `skip_unreadable` files that cannot be read are left
    out, with a warning that names them. A `foreign` model is one that was not trained here (`open_source`).
    """
    spec = parse_data(name)
    source = open_source(spec, split, root=root, download=download, foreign=foreign)
    if source.images is not None:
        labels, groups = torch.from_numpy(source.labels), _group_numbers(source)
        images = TensorPixels(torch.from_numpy(source.images))
        # A size in the recipe says that pictures are brought to it; these have been, and a user's own will be.
        resize: Resize = "bilinear" if images.shape[1:] == (size, size) else "refuse"
        return ImageData(name, images, labels, source.classes, resize=resize, groups=groups, rule=source.rule)
    if model is None and spec.kind == "imagenet":
        size = size or 224
    return _pictures(name, source, size, model, skip_unreadable)


def _pictures(name: str, source: Source, size: int, model: Model | None, allowed: int) -> ImageData:
    """Encoded pictures, without those that cannot be read."""
    if model is None:
        source, spec = picture_input(source, size, allowed=allowed)
    else:
        spec = model.input
    left_out = unreadable_numbers(source, spec, allowed=allowed) if allowed else []
    if left_out:
        source = source.take([number for number in range(len(source)) if number not in set(left_out)])
    classes = source.classes if model is None else tuple(model.classes)
    numbers = torch.from_numpy(source_labels(source, classes))
    pixels = picture_pixels(source, spec)
    groups = _group_numbers(source)
    return ImageData(name, pixels, numbers, classes, resize=spec.resize, groups=groups, rule=source.rule)


def _group_numbers(source: Source) -> Tensor | None:
    if source.groups is None:
        return None
    return torch.from_numpy(np.unique(source.groups, return_inverse=True)[1].reshape(-1).astype(np.int64))
