"""Data sets: uint8 images and labels, with a digest that says which data a model has seen.

A set that fits into memory is one uint8 tensor; a larger one (ImageNet) is a list of files that are read as they are
needed. Both answer `take(indices)`. The test split is never seen by training: what a training measures itself on is
held out of the training split (`ImageData.split`).
"""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from robustinfer.card import InputSpec, Resize
from robustinfer.data import class_folders, class_numbers, digits, imagenet_folder, npz_arrays
from robustinfer.errors import DataError
from robustinfer.vision import vision_arrays

from .pixels import Pixels, TensorPixels, folder_input, folder_pixels

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
    """Images, labels and the names of the classes. `indices` chooses a part of the images, None all of them."""

    name: str
    pixels: Pixels
    labels: Tensor
    classes: tuple[str, ...]
    indices: Tensor | None = None
    resize: Resize = "refuse"

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
        return dataclasses.replace(self, labels=self.labels[numbers], indices=indices)

    def head(self, count: int) -> "ImageData":
        """The first `count` images, or all if there are fewer."""
        return self if count >= len(self) else self.subset(torch.arange(count))

    def split(self, fraction: float) -> tuple["ImageData", "ImageData"]:
        """Training and held-out images; the same ones for the same data and fraction."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(_SPLIT_SEED))
        held_out = round(len(self) * fraction)
        return self.subset(order[held_out:].sort().values), self.subset(order[:held_out].sort().values)

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
) -> ImageData:
    """The `train` or `test` split of `digits`, `mnist`, `cifar10`, `imagenet`, `folder:PATH` or `npz:PATH`.

    `root` is where mnist, cifar10 and imagenet lie. Files of folders are read as `model` (a run or a card) takes them,
    with its classes; before there is a model, `size` is the side of its images.
    """
    if split not in ("train", "test"):
        raise DataError(f"A split is train or test; found {split!r}.")
    kind, _, path = name.partition(":")
    if kind == "folder" and path:
        return _folder(name, Path(path), split, size, model)
    if name == "imagenet":
        return _folder(name, imagenet_folder(root), split, size or 224, model)
    if kind == "npz" and path:
        return _npz(name, Path(path), split)
    loaders: dict[str, Callable[[], ImageData]] = {
        "digits": lambda: _digits(split),
        "mnist": lambda: _vision("mnist", root, split, download),
        "cifar10": lambda: _vision("cifar10", root, split, download),
    }
    if name not in loaders:
        raise DataError(f"A data set is {', '.join(loaders)}, imagenet, folder:PATH or npz:PATH; found {name!r}.")
    return loaders[name]()


def _folder(name: str, path: Path, split: str, size: int, model: Model | None) -> ImageData:
    files, labels, found = class_folders(path, split)
    spec = folder_input(path, files, size) if model is None else model.input
    classes = tuple(found) if model is None else tuple(model.classes)
    numbers = torch.from_numpy(class_numbers(path, found, classes))
    return ImageData(name, folder_pixels(path, files, spec), numbers[labels], classes, resize=spec.resize)


def _vision(name: str, root: str | Path, split: str, download: bool) -> ImageData:
    images, labels, classes = vision_arrays(name, split, root, download=download)
    return ImageData(name, TensorPixels(torch.from_numpy(images)), torch.from_numpy(labels), classes)


def _digits(split: str) -> ImageData:
    images, labels = digits(split)
    classes = tuple(str(digit) for digit in range(10))
    return ImageData("digits", TensorPixels(torch.from_numpy(images)), torch.from_numpy(labels), classes)


def _npz(name: str, path: Path, split: str) -> ImageData:
    images, labels, classes = npz_arrays(path, split)
    return ImageData(name, TensorPixels(torch.from_numpy(images)), torch.from_numpy(labels), classes)
