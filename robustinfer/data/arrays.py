"""Data sets that are arrays: the digits of scikit-learn, and npz files, those of MedMNIST among them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError, MissingDataError
from ..extras import require
from .splits import split_fifth

__all__ = ["ArrayPart", "digits", "npz_arrays", "npz_parts"]

Array = npt.NDArray[Any]

# Names of the images, the labels and the groups; {} is the split, and nothing in a file without parts.
_LAYOUTS = (
    ("x_{}", "y_{}", "group_{}"),
    ("{}_images", "{}_labels", "{}_groups"),
)
_WHOLE = (("x", "y", "group"), ("images", "labels", "group"))


@dataclass(frozen=True)
class ArrayPart:
    """One part of a set: images (N, C, H, W), labels, class names, and the groups of the images if it names them."""

    images: Array
    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    groups: Array | None = None


def digits(split: str) -> tuple[Array, npt.NDArray[np.int64]]:
    """The 1,797 digits of 8 x 8 pixels that come with scikit-learn, as uint8; every fifth one is the test split."""
    datasets = require("sklearn.datasets", extra="train", why="The data set digits")
    images, targets = datasets.load_digits(return_X_y=True)
    chosen = split_fifth(len(targets), test=split == "test")
    pixels = np.round(images[chosen].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    return pixels, targets[chosen].astype(np.int64)


def npz_arrays(path: Path, split: str) -> tuple[Array, npt.NDArray[np.int64], tuple[str, ...]]:
    """Images (N, C, H, W), labels and class names of the `train` or `test` part of an npz file."""
    parts = npz_parts(path)
    if split not in parts:
        found = ", ".join(parts) or "no split"
        raise DataError(f"{path} holds x_{split}, y_{split} (or {split}_images, {split}_labels); found {found}.")
    part = parts[split]
    return part.images, part.labels, part.classes


def npz_parts(path: Path) -> Mapping[str, ArrayPart]:
    """The parts of an npz file: train and test, or one part "" of a file without a split.

    Images are `x_train` and `x_test` with labels `y_train` and `y_test`, as in MedMNIST `train_images` and
    `train_labels`, or `x` and `y` without a split: uint8 of shape (N, H, W), (N, H, W, C) or (N, C, H, W), labels (N)
    or (N, 1). `group_train`, or `group` without a split, names the group of each image and `classes` the classes; both
    are optional.
    """
    if not path.is_file():
        raise MissingDataError(f"There is no file {path}.")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found: dict[str, Any] = {key: arrays[key] for key in arrays.files}
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is not a readable .npz file without pickled objects: {error}.") from error
    names = _names(found)
    if not names:
        expected = "x_test, y_test (and x_train, y_train), or test_images, test_labels (...), or x, y"
        raise DataError(f"{path} holds {expected}; found {', '.join(found) or 'nothing'}.")
    images = {split: _channels_first(found[x], path) for split, (x, _, _) in names.items()}
    labels = {split: _labels(found[y], len(found[x]), y, path) for split, (x, y, _) in names.items()}
    count = max(int(own.max()) for own in labels.values()) + 1
    classes = tuple(str(label) for label in found.get("classes", range(count)))
    if len(classes) < max(2, count):
        raise DataError(f"{path} has labels up to {count - 1} but names {len(classes)} classes.")
    return {
        split: ArrayPart(images[split], labels[split], classes, _groups(found, group, labels[split], path))
        for split, (_, _, group) in names.items()
    }


def _names(found: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
    """The names of the arrays of each part."""
    for layout in _LAYOUTS:
        parts = {}
        for split, name in (("train", "train"), ("test", "test"), ("test", "val")):
            x, y, group = (pattern.format(name) for pattern in layout)
            if x in found and y in found and split not in parts:
                parts[split] = (x, y, group)
        if parts:
            return parts
    whole = [names for names in _WHOLE if names[0] in found and names[1] in found]
    return {"": whole[0]} if whole else {}


def _labels(labels: Array, count: int, name: str, path: Path) -> npt.NDArray[np.int64]:
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise DataError(f"{name} of {path} has {labels.shape[1]} labels per image; a classifier needs one class each.")
    labels = labels.reshape(-1) if labels.ndim == 2 else labels
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape != (count,) or not count or labels.min() < 0:
        raise DataError(f"{name} of {path} holds one whole number from 0 per image; found {labels.dtype}.")
    return labels.astype(np.int64)


def _groups(found: dict[str, Any], name: str, labels: Array, path: Path) -> Array | None:
    groups: Array | None = found.get(name)
    if groups is not None and groups.shape != labels.shape:
        raise DataError(f"{name} of {path} names one group per image; found the shape {groups.shape}.")
    return groups


def _channels_first(images: Array, path: Path) -> Array:
    if images.dtype != np.uint8:
        raise DataError(f"The images of {path} are uint8 from 0 to 255; found {images.dtype}.")
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[-1] in (1, 3) and images.shape[1] not in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
        raise DataError(f"The images of {path} are N x H x W, N x H x W x C or N x C x H x W; found {images.shape}.")
    return np.ascontiguousarray(images)
