"""Data sets for certification, without torch: images one by one, labels, and the part that belongs to a shard.

A data set is named `digits`, `mnist`, `cifar10` or `imagenet` (with the folder that holds it behind a colon),
`folder:PATH` (one sub-folder per class) or `npz:PATH`. A bare path holds the data set that the model was trained on.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .card import Card, InputSpec
from .errors import DataError, SettingError
from .extras import require
from .images import PICTURE_SUFFIXES, image_digest, read_image
from .vision import vision_arrays

__all__ = [
    "ImageSet",
    "class_folders",
    "class_numbers",
    "digits",
    "imagenet_folder",
    "load_images",
    "npz_arrays",
    "parse_shard",
    "split_fifth",
]

NAMES = ("digits", "mnist", "cifar10", "imagenet")

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ImageSet:
    """Images by number, read when they are asked for, and their labels.

    `content` gives the bytes an image is made of where that is quicker than reading it: those of its file.
    """

    name: str
    labels: npt.NDArray[np.int64]
    read: Callable[[int], Array]
    content: Callable[[int], bytes] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def digest(self, numbers: Iterable[int]) -> str:
        """The SHA-256 of these images and their labels, in this order; what they are called does not matter."""
        digest = hashlib.sha256()
        for number in numbers:
            if self.content is None:
                digest.update(image_digest(self.read(number)).encode())
            else:
                digest.update(hashlib.sha256(self.content(number)).digest())
            digest.update(int(self.labels[number]).to_bytes(8, "little", signed=True))
        return f"sha256:{digest.hexdigest()}"


def load_images(spec: str, card: Card, *, split: str = "test") -> ImageSet:
    """The images of a data set, as a model with this card takes them."""
    name, path = _parse(spec, card)
    if name in {"folder", "imagenet"}:
        folder = Path(path) if name == "folder" else imagenet_folder(path or "data")
        return _folder(name, folder, card, split)
    if name == "npz":
        images, labels, _ = npz_arrays(Path(path), split)
    elif name == "digits":
        images, labels = digits(split)
    else:
        images, labels, _ = vision_arrays(name, split, path or "data")
    return _checked(ImageSet(name, labels, lambda i: images[i]), card)


def digits(split: str) -> tuple[Array, npt.NDArray[np.int64]]:
    """The 1,797 digits of 8 x 8 pixels that come with scikit-learn, as uint8; every fifth one is the test split."""
    datasets = require("sklearn.datasets", extra="train", why="The data set digits")
    images, targets = datasets.load_digits(return_X_y=True)
    chosen = split_fifth(len(targets), test=split == "test")
    pixels = np.round(images[chosen].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    return pixels, targets[chosen].astype(np.int64)


def npz_arrays(path: Path, split: str) -> tuple[Array, npt.NDArray[np.int64], tuple[str, ...]]:
    """Images (N, C, H, W), labels and class names of an npz file.

    It holds arrays `x_train`, `y_train`, `x_test`, `y_test` of uint8 images, (N, H, W), (N, H, W, C) or (N, C, H, W);
    `classes`, an array of names, is optional.
    """
    if not path.is_file():
        raise DataError(f"There is no file {path}.")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found: dict[str, Any] = {key: arrays[key] for key in arrays.files}
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is not a readable .npz file without pickled objects: {error}.") from error
    keys = (f"x_{split}", f"y_{split}")
    if not set(keys) <= set(found):
        raise DataError(f"{path} holds {', '.join(keys)}; found {', '.join(found) or 'nothing'}.")
    images, labels = _channels_first(found[keys[0]], path), found[keys[1]]
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape != images.shape[:1] or labels.min() < 0:
        raise DataError(f"{keys[1]} of {path} holds one whole number from 0 per image; found {labels.dtype}.")
    count = int(max(labels.max(), found.get("y_train", labels).max())) + 1
    classes = tuple(str(label) for label in found.get("classes", range(count)))
    if len(classes) < max(2, count):
        raise DataError(f"{path} has labels up to {count - 1} but names {len(classes)} classes.")
    return images, labels.astype(np.int64), classes


def imagenet_folder(root: str | os.PathLike[str]) -> Path:
    """The folder with ImageNet's train and val: ROOT/imagenet, or ROOT itself."""
    inside = Path(root) / "imagenet"
    return inside if inside.is_dir() else Path(root)


def class_folders(path: Path, split: str) -> tuple[list[Path], list[int], list[str]]:
    """Files, labels and class names of PATH/train or PATH/test (or PATH/val); without them, a fifth of PATH is test."""
    if not path.is_dir():
        raise DataError(f"There is no folder {path}: give a folder with one sub-folder per class.")
    names = ("train",) if split == "train" else ("test", "val")
    root = next((path / name for name in names if (path / name).is_dir()), None)
    if root is not None:
        return _list(root)
    if any((path / name).is_dir() for name in ("train", "test", "val")):
        raise DataError(f"The folder {path} has a part of train/test but no {' or '.join(names)}.")
    files, labels, classes = _list(path)
    chosen = split_fifth(len(files), test=split == "test")
    return [files[i] for i in chosen], [labels[i] for i in chosen], classes


def split_fifth(count: int, *, test: bool) -> npt.NDArray[np.int64]:
    """The numbers of the test images, every fifth, or of all others: for data sets that come without a split."""
    return np.flatnonzero((np.arange(count) % 5 == 4) == test)


def parse_shard(text: str | None) -> tuple[int, int]:
    """Which part of the work is ours: "i/n" with i from 0 to n - 1, else from RANK and WORLD_SIZE, else all of it."""
    if text is None:
        text = f"{os.environ.get('RANK', '0')}/{os.environ.get('WORLD_SIZE', '1')}"
    index, slash, total = text.partition("/")
    if not slash or not index.isdigit() or not total.isdigit() or int(index) >= int(total):
        raise SettingError(f"Expected a shard i/n with i from 0 to n - 1, such as 0/4; found {text!r}.")
    return int(index), int(total)


def _parse(spec: str, card: Card) -> tuple[str, str]:
    name, _, path = spec.partition(":")
    if name in NAMES:
        return name, path
    if name in {"folder", "npz"} and path:
        return name, path
    if Path(spec).is_dir():
        trained = dict(card.training.get("recipe") or {}).get("data")
        if not trained:
            raise DataError(
                f"The model does not say which data set {spec} should hold: write folder:{spec} or mnist:{spec}."
            )
        name, _, _ = str(trained).partition(":")
        return name, spec
    raise DataError(
        "Expected a data set (digits, mnist:DIR, cifar10:DIR, imagenet:DIR, folder:PATH, npz:PATH) or a folder, "
        f"found {spec!r}."
    )


def _folder(name: str, path: Path, card: Card, split: str) -> ImageSet:
    files, labels, found = class_folders(path, split)
    numbers = class_numbers(path, found, card.classes)
    return ImageSet(name, numbers[labels], lambda i: read_image(files[i], card.input), lambda i: _bytes(files[i]))


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"Cannot read the image {file}: {error.strerror or error}.") from error


def class_numbers(path: Path, found: Sequence[str], classes: Sequence[str]) -> npt.NDArray[np.int64]:
    """The model's numbers of the classes found in a folder, which need not have all of them."""
    unknown = sorted(set(found) - set(classes))
    if unknown:
        raise DataError(f"The folder {path} has the class {unknown[0]!r}, which the model does not know.")
    return np.array([classes.index(name) for name in found], dtype=np.int64)


def _list(root: Path) -> tuple[list[Path], list[int], list[str]]:
    classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if len(classes) < 2:
        raise DataError(f"The folder {root} needs one sub-folder for each of two classes or more.")
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = sorted(file for file in (root / name).rglob("*") if file.suffix.lower() in PICTURE_SUFFIXES)
        if not found:
            raise DataError(f"The class folder {root / name} holds no images; fill it or remove it.")
        files += found
        labels += [label] * len(found)
    return files, labels, classes


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


def _checked(data: ImageSet, card: Card) -> ImageSet:
    spec: InputSpec = card.input
    shape: Sequence[int] = data.read(0).shape
    if tuple(shape) != spec.shape:
        raise DataError(f"The images of {data.name} have the shape {tuple(shape)}, but the model takes {spec.shape}.")
    if int(data.labels.max()) >= len(card.classes):
        raise DataError(
            f"{data.name} has labels up to {int(data.labels.max())}, but the model knows {len(card.classes)} classes."
        )
    return data
