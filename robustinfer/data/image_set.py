"""Data sets for certification, without torch: images one by one, labels, and the part that belongs to a shard.

A model's card says how its images are read and which number each class has.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..card import Card
from ..errors import ArgumentError, DataError, ImageFileError, InputError
from ..images import decode_image, image_digest, read_image
from .files import pictures_in
from .source import Source, open_source
from .spec import find_data
from .splits import choose

__all__ = [
    "ImageSet",
    "choose_readable",
    "class_numbers",
    "load_images",
    "parse_shard",
    "source_labels",
    "unlabelled_images",
    "unreadable",
]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ImageSet:
    """Images by number, read when they are asked for, and their labels.

    `content` gives the bytes an image is made of where that is quicker than reading it: those of its file. `files` are
    the names of the files within the set, `split` is the part of it, and `rule` says how that was made if the set has
    no parts of its own.
    """

    name: str
    labels: npt.NDArray[np.int64]
    read: Callable[[int], Array]
    content: Callable[[int], bytes] | None = None
    files: tuple[str, ...] = ()
    split: str = "test"
    rule: str = ""

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


def load_images(spec: str, card: Card, *, split: str = "test", download: bool = False) -> ImageSet:
    """The images of a data set, as a model with this card takes them.

    `split` is train, test, all, or auto: the test images, but all images of a set without a split if the card does not
    say that the model was trained here, by the rule that divides such sets.
    """
    recipe = dict(card.training.get("recipe") or {})
    found = find_data(spec, recipe.get("data"))
    source = open_source(found, split, download=download, foreign=not recipe)
    labels = source_labels(source, card.classes)
    # Where mnist, cifar10 and imagenet lie says nothing about what they are.
    name = found.kind if found.kind in ("digits", "mnist", "cifar10", "imagenet") else str(found.resolved())
    if source.images is not None:
        images = source.images
        data = ImageSet(name, labels, lambda i: images[i], split=source.split, rule=source.rule)
        return _checked(data, found.short, card)
    names = source.names or tuple(f"picture {number}" for number in range(len(source)))

    def read(number: int) -> Array:
        content = source.content(number)
        try:
            return decode_image(content, card.input)
        except InputError as error:
            raise type(error)(f"{_place(source, number)}: {error}") from error

    return ImageSet(name, labels, read, _bytes(source), names, source.split, source.rule)


def unlabelled_images(paths: Sequence[Path], card: Card) -> ImageSet:
    """Image files, and those of folders, as a model with this card takes them; their labels are not known (-1)."""
    files: list[Path] = []
    for path in paths:
        files += pictures_in(path) if path.is_dir() else [path]
    names = tuple(str(file) for file in files)
    labels = np.full(len(files), -1, dtype=np.int64)
    return ImageSet("files", labels, lambda number: read_image(files[number], card.input), files=names, split="all")


def unreadable(data: ImageSet, numbers: Iterable[int], *, allowed: int = 0) -> dict[int, str]:
    """The images among these that cannot be read, each with a sentence; more than `allowed` are an error.

    Files are looked at before hours of work, arrays never are: they are whole.
    """
    found: dict[int, str] = {}
    if not data.files:
        return found
    for number in numbers:
        try:
            data.read(number)
        except InputError as error:
            found[number] = str(error)
            if len(found) > allowed:
                raise DataError(_refusal(found, allowed)) from error
    return found


def choose_readable(
    data: ImageSet, *, every: int = 1, limit: int | None = None, allowed: int = 0
) -> tuple[npt.NDArray[np.int64], dict[int, str]]:
    """The numbers of the images to take, as `choose` does, and those left out because they cannot be read."""
    left_out: dict[int, str] = {}
    seen: set[int] = set()
    while True:
        numbers = choose(data.labels, every=every, limit=limit, left_out=list(left_out))
        fresh = [number for number in map(int, numbers) if number not in seen]
        found = unreadable(data, fresh, allowed=allowed - len(left_out))
        if not found:
            return numbers, left_out
        seen.update(fresh)
        left_out |= found


def _refusal(found: dict[int, str], allowed: int) -> str:
    advice = "Repair or remove it, or leave out up to N such files with --skip-unreadable N."
    *others, last = found.values()
    return f"{last} {advice}" if not others else f"More than {allowed} files are unreadable: {last} {advice}"


def parse_shard(text: str | None) -> tuple[int, int]:
    """Which part of the work is ours: "i/n" with i from 0 to n - 1, else from RANK and WORLD_SIZE, else all of it."""
    if text is None:
        text = f"{os.environ.get('RANK', '0')}/{os.environ.get('WORLD_SIZE', '1')}"
    index, slash, total = text.partition("/")
    if not slash or not index.isdigit() or not total.isdigit() or int(index) >= int(total):
        raise ArgumentError(f"Expected a shard i/n with i from 0 to n - 1, such as 0/4; found {text!r}.")
    return int(index), int(total)


def source_labels(source: Source, classes: Sequence[str]) -> npt.NDArray[np.int64]:
    """The labels of a set as a model with these classes numbers them: by their names where the set has names."""
    if not source.named:
        return source.labels
    by_number = source.spec.kind in ("csv", "gtsrb", "parquet") and all(map(str.isdecimal, source.classes))
    if by_number and not set(source.classes) <= set(classes):
        numbers = np.array([int(name) for name in source.classes], dtype=np.int64)
        if numbers.max() >= len(classes):
            raise DataError(
                f"{source.spec.short} has labels up to {numbers.max()}, but the model knows {len(classes)} classes."
            )
        return numbers[source.labels]
    return class_numbers(Path(source.spec.path), source.classes, classes)[source.labels]


def class_numbers(path: Path, found: Sequence[str], classes: Sequence[str]) -> npt.NDArray[np.int64]:
    """The model's numbers of the classes found in a folder, which need not have all of them."""
    unknown = sorted(set(found) - set(classes))
    if unknown:
        raise DataError(f"The folder {path} has the class {unknown[0]!r}, which the model does not know.")
    return np.array([classes.index(name) for name in found], dtype=np.int64)


def _place(source: Source, number: int) -> str:
    return str(source.files[number]) if source.files else f"picture {number} of {source.spec.short}"


def _bytes(source: Source) -> Callable[[int], bytes]:
    def content(number: int) -> bytes:
        try:
            return source.content(number)
        except ImageFileError as error:
            raise DataError(str(error)) from error

    return content


def _checked(data: ImageSet, name: str, card: Card) -> ImageSet:
    shape: Sequence[int] = data.read(0).shape
    if tuple(shape) != card.input.shape:
        raise DataError(f"The images of {name} have the shape {tuple(shape)}, but the model takes {card.input.shape}.")
    if int(data.labels.max()) >= len(card.classes):
        raise DataError(
            f"{name} has labels up to {int(data.labels.max())}, but the model knows {len(card.classes)} classes."
        )
    return data
