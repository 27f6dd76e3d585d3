"""A data set before any model says how it is read: labels, and images as arrays or as encoded pictures.

Training and certification both begin here, so that a name means the same images to both.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, DataError, ImageFileError
from .arrays import ArrayPart, digits, npz_parts
from .files import Listing, csv_listings, folder_listings, gtsrb_listings, imagenet_folder
from .parquet import EncodedPart, parquet_parts
from .spec import DataSpec
from .splits import groups_of_names, split_fifth, split_groups
from .vision import is_divided, torchvision_part, vision_arrays

__all__ = ["SPLITS", "Source", "open_source"]

SPLITS = ("train", "test", "all", "auto")

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Source:
    """Labels and images: uint8 arrays (N, C, H, W), or picture files, or the bytes of pictures.

    `rule` says in a sentence how the split was made, if the set has none of its own; `named` whether a label is known
    by the name of its class, or by its number.
    """

    spec: DataSpec
    labels: Numbers
    classes: tuple[str, ...]
    images: Array | None = None
    files: tuple[Path, ...] = ()
    encoded: tuple[bytes, ...] = ()
    root: Path = Path()
    groups: npt.NDArray[Any] | None = None
    split: str = "test"
    rule: str = ""
    named: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def names(self) -> tuple[str, ...]:
        """The files relative to the folder of the set; empty for arrays."""
        return tuple(_relative(file, self.root) for file in self.files)

    def content(self, number: int) -> bytes:
        """The bytes of an encoded picture."""
        if self.encoded:
            return self.encoded[number]
        try:
            return self.files[number].read_bytes()
        except OSError as error:
            raise ImageFileError(f"Cannot read the image {self.files[number]}: {error.strerror or error}.") from error

    def take(self, numbers: Sequence[int] | Numbers, **changes: Any) -> "Source":
        """These images only."""
        chosen = np.asarray(numbers, dtype=np.int64)
        return dataclasses.replace(
            self,
            labels=self.labels[chosen],
            images=None if self.images is None else self.images[chosen],
            files=tuple(self.files[i] for i in chosen) if self.files else (),
            encoded=tuple(self.encoded[i] for i in chosen) if self.encoded else (),
            groups=None if self.groups is None else self.groups[chosen],
            **changes,
        )


Parts = Mapping[str, Callable[[], Source]]


def open_source(
    spec: DataSpec, split: str = "test", *, root: str | Path = "data", download: bool = False, foreign: bool = False
) -> Source:
    """A part of a data set: `train`, `test` or `all`.

    A set without parts is divided by a fixed rule: every fifth image, or group, is a test image. `auto` is `test`, but
    all of such a set for a `foreign` model, which was not trained by that rule.
    """
    if split not in SPLITS:
        raise ArgumentError(f"A split is {', '.join(SPLITS[:-1])} or {SPLITS[-1]}; found {split!r}.")
    parts = _READERS[spec.kind](spec, root, download)
    if "" in parts:
        return _divided(parts[""](), split, foreign=foreign)
    if split == "all":
        return _joined([part() for part in parts.values()])
    wanted = "test" if split == "auto" else split
    if wanted not in parts:
        raise DataError(f"{spec.short} has the part {' and '.join(parts)} but no {wanted}: add it, or use --split all.")
    return dataclasses.replace(parts[wanted](), split=wanted)


def _divided(whole: Source, split: str, *, foreign: bool) -> Source:
    """A part of a set that has none of its own."""
    if whole.spec.group and whole.files:
        whole = dataclasses.replace(whole, groups=groups_of_names(whole.names, whole.spec.group))
    if split == "all" or (split == "auto" and foreign):
        return dataclasses.replace(whole, split="all", rule=f"{whole.spec.short} has no split: all images are used.")
    test = split != "train"
    if whole.groups is None:
        chosen, unit = split_fifth(len(whole), test=test), "image"
    else:
        chosen, unit = split_groups(whole.groups, test=test), "group"
    part = "every fifth" if test else "all but every fifth"
    if not len(chosen):
        raise DataError(
            f"{whole.spec.short} has no split, and {part} {unit} of {len(whole)} images leaves none: add images."
        )
    rule = f"{whole.spec.short} has no split: {part} {unit} is used, {len(chosen)} of {len(whole)} images."
    return whole.take(chosen, split="test" if test else "train", rule=rule)


def _joined(parts: list[Source]) -> Source:
    """The parts of a set as one."""
    first = parts[0]
    classes = tuple(sorted({name for part in parts for name in part.classes})) if first.named else first.classes
    numbers = [np.array([classes.index(name) if first.named else i for i, name in enumerate(p.classes)]) for p in parts]
    groups = [part.groups for part in parts if part.groups is not None]
    return dataclasses.replace(
        first,
        labels=np.concatenate([own[part.labels] for own, part in zip(numbers, parts, strict=True)]),
        classes=classes,
        images=None if first.images is None else np.concatenate([p.images for p in parts if p.images is not None]),
        files=tuple(file for part in parts for file in part.files),
        encoded=tuple(content for part in parts for content in part.encoded),
        groups=np.concatenate(groups) if len(groups) == len(parts) else None,
        split="all",
    )


def _relative(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix() if file.is_relative_to(root) else file.as_posix()


def _digits(spec: DataSpec, root: str | Path, download: bool) -> Parts:
    def part(split: str) -> Source:
        images, labels = digits(split)
        return Source(spec, labels, tuple(str(digit) for digit in range(10)), images)

    return {split: partial(part, split) for split in ("train", "test")}


def _vision(spec: DataSpec, root: str | Path, download: bool) -> Parts:
    def part(split: str) -> Source:
        images, labels, classes = vision_arrays(spec.kind, split, spec.path or root, download=download)
        return Source(spec, labels, classes, images)

    return {split: partial(part, split) for split in ("train", "test")}


def _torchvision(spec: DataSpec, root: str | Path, download: bool) -> Parts:
    name, _, place = spec.path.partition(":")

    def part(split: str) -> Source:
        found = torchvision_part(name, split, place or root, download=download)
        return Source(spec, found.labels, found.classes, found.images, found.files, root=Path(place or root))

    splits = ("train", "test") if is_divided(name) else ("",)
    return {split: partial(part, split) for split in splits}


def _npz(spec: DataSpec, root: str | Path, download: bool) -> Parts:
    def part(found: ArrayPart) -> Source:
        return Source(spec, found.labels, found.classes, found.images, groups=found.groups)

    return {split: partial(part, found) for split, found in npz_parts(Path(spec.path)).items()}


def _files(
    read: Callable[[Path], Mapping[str, Callable[[], Listing]]],
) -> Callable[[DataSpec, str | Path, bool], Parts]:
    """The reader of a set of picture files, from what lists its parts."""

    def reader(spec: DataSpec, root: str | Path, download: bool) -> Parts:
        def source(listed: Callable[[], Listing]) -> Source:
            part = listed()
            groups = part.groups if part.groups is None else np.array(part.groups)
            labels = np.array(part.labels, dtype=np.int64)
            if spec.group:
                names = tuple(_relative(file, part.root) for file in part.files)
                groups = groups_of_names(names, spec.group)
            return Source(
                spec, labels, tuple(part.classes), files=tuple(part.files), root=part.root, groups=groups, named=True
            )

        place = imagenet_folder(spec.path or root) if spec.kind == "imagenet" else Path(spec.path)
        return {split: partial(source, listed) for split, listed in read(place).items()}

    return reader


def _parquet(spec: DataSpec, root: str | Path, download: bool) -> Parts:
    def part(read: Callable[[], EncodedPart]) -> Source:
        found = read()
        return Source(spec, found.labels, found.classes, encoded=found.pictures, groups=found.groups, named=True)

    return {split: partial(part, read) for split, read in parquet_parts(Path(spec.path)).items()}


_READERS: dict[str, Callable[[DataSpec, str | Path, bool], Parts]] = {
    "digits": _digits,
    "mnist": _vision,
    "cifar10": _vision,
    "torchvision": _torchvision,
    "npz": _npz,
    "folder": _files(folder_listings),
    "imagenet": _files(folder_listings),
    "csv": _files(csv_listings),
    "gtsrb": _files(gtsrb_listings),
    "parquet": _parquet,
}
