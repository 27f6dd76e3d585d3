"""What a data set holds, before anybody trains on it for an hour: counts, sizes, colours, broken files, duplicates."""

import dataclasses
import hashlib
import io
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..card import InputSpec
from ..errors import DataError, InputError
from ..images import decode_image, picture_shape
from .source import Source, open_source
from .spec import DataSpec

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["DataDescription", "PartDescription", "contact_sheet", "describe_data"]

_SIDE = 32  # statistics and hashes are taken of images of this side
_THUMB, _COLUMNS = 64, 10
_NAMED = 20  # how many files a list names


@dataclass(frozen=True)
class PartDescription:
    """One part of a data set. `mean` and `std` are per channel, in [0,1]; `sizes` counts images by WIDTHxHEIGHT."""

    images: int
    classes: dict[str, int]
    sizes: dict[str, int]
    channels: dict[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    groups: int | None
    unreadable: dict[str, str]
    duplicates: int
    rule: str


@dataclass(frozen=True)
class DataDescription:
    """A data set, part by part, and what its parts share.

    `across` are images of the test part whose pixels are also in the training part, `near` those that look the same at
    8 x 8 pixels, and `shared_groups` the groups that have images in both: each makes a test result too good.
    """

    name: str
    parts: dict[str, PartDescription]
    across: list[str] = field(default_factory=list)
    near: list[str] = field(default_factory=list)
    shared_groups: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The description as a JSON object."""
        return dataclasses.asdict(self)


def describe_data(spec: DataSpec, *, root: str | Path = "data", download: bool = False) -> DataDescription:
    """Read all of a data set and describe it."""
    parts: dict[str, PartDescription] = {}
    hashes: dict[str, dict[str, str]] = {}
    looks: dict[str, dict[str, str]] = {}
    groups: dict[str, set[str]] = {}
    for split in ("train", "test"):
        try:
            source = open_source(spec, split, root=root, download=download)
        except DataError:
            if split == "train":  # a set may have test images only
                continue
            if not parts:
                raise
            continue
        parts[split], hashes[split], looks[split] = _part(source)
        groups[split] = set() if source.groups is None else set(map(str, source.groups))
    across = _found_again(hashes)
    near = [name for name in _found_again(looks) if name not in set(across)]
    shared = sorted(set.intersection(*groups.values())) if len(groups) == 2 else []
    return DataDescription(str(spec), parts, across, near, shared)


def _part(source: Source) -> tuple[PartDescription, dict[str, str], dict[str, str]]:
    """The description of a part, and of each of its images the digest and the look."""
    sizes: Counter[str] = Counter()
    channels: Counter[int] = Counter()
    unreadable, digests, looks = {}, {}, {}
    total, squares, pixels = np.zeros(3), np.zeros(3), 0
    names = source.names or tuple(f"image {number}" for number in range(len(source)))
    for number, name in enumerate(names):
        try:
            image, (own, height, width) = _image(source, number)
        except InputError as error:
            unreadable[name] = str(error)
            continue
        sizes[f"{width}x{height}"] += 1
        channels[own] += 1
        values = image.reshape(3, -1) / 255
        total += values.sum(axis=1)
        squares += (values**2).sum(axis=1)
        pixels += values.shape[1]
        digests[name] = hashlib.sha256(source.content(number) if source.images is None else image.tobytes()).hexdigest()
        looks[name] = _look(image)
    kept = slice(0, 1 if set(channels) == {1} else 3)
    mean = (total / max(pixels, 1))[kept]
    std = np.sqrt(np.maximum(squares[kept] / max(pixels, 1) - mean**2, 0))
    counts = np.bincount(source.labels, minlength=len(source.classes))
    return (
        PartDescription(
            images=len(source),
            classes=dict(zip(source.classes, map(int, counts), strict=True)),
            sizes=dict(sizes.most_common(_NAMED)),
            channels=dict(channels),
            mean=tuple(round(float(value), 4) for value in mean),
            std=tuple(round(float(value), 4) for value in std),
            groups=None if source.groups is None else len(np.unique(source.groups)),
            unreadable=unreadable,
            duplicates=len(digests) - len(set(digests.values())),
            rule=source.rule,
        ),
        digests,
        looks,
    )


def _image(source: Source, number: int) -> tuple[npt.NDArray[np.uint8], tuple[int, int, int]]:
    """An image as (3, H, W): an array as it is, a picture brought to a small size; and its own shape."""
    if source.images is not None:
        image = source.images[number]
        channels, height, width = image.shape
        return np.broadcast_to(image, (3, height, width)), (channels, height, width)
    content = source.content(number)
    small = decode_image(content, InputSpec(3, _SIDE, _SIDE, resize="bilinear"))
    return small, picture_shape(io.BytesIO(content))


def _look(image: npt.NDArray[np.uint8]) -> str:
    """Whether each of 8 x 8 areas is brighter than its neighbour to the right: the same for small changes."""
    from PIL import Image

    grey = Image.fromarray(np.ascontiguousarray(image.mean(axis=0).astype(np.uint8)))
    values = np.asarray(grey.resize((9, 8), Image.Resampling.BOX), dtype=np.int16)
    return np.packbits(values[:, 1:] > values[:, :-1]).tobytes().hex()


def _found_again(marks: dict[str, dict[str, str]]) -> list[str]:
    """The test images whose mark a training image has, with the first such image."""
    if set(marks) != {"train", "test"}:
        return []
    first: dict[str, list[str]] = defaultdict(list)
    for name, mark in marks["train"].items():
        first[mark].append(name)
    flat = "0" * 16  # an image without any contrast looks like every other such image
    return [f"{name} = {first[mark][0]}" for name, mark in marks["test"].items() if mark in first and mark != flat]


def contact_sheet(spec: DataSpec, *, root: str | Path = "data", split: str = "train") -> "Image.Image":
    """The first images of each class, one row per class, at most thirty classes."""
    from PIL import Image, ImageDraw

    source = open_source(spec, split, root=root)
    labels = [label for label in range(len(source.classes)) if (source.labels == label).any()][:30]
    sheet = Image.new("RGB", (_COLUMNS * _THUMB + 160, max(1, len(labels)) * _THUMB), "white")
    draw = ImageDraw.Draw(sheet)
    for row, label in enumerate(labels):
        draw.text((6, row * _THUMB + _THUMB // 2 - 6), source.classes[label][:24], fill="black")
        for column, number in enumerate(np.flatnonzero(source.labels == label)[:_COLUMNS]):
            try:
                image, _ = _image(source, int(number))
            except InputError:
                continue  # an empty place
            picture = Image.fromarray(np.ascontiguousarray(np.moveaxis(image, 0, 2)))
            thumb = picture.resize((_THUMB - 4, _THUMB - 4), Image.Resampling.NEAREST)
            sheet.paste(thumb, (160 + column * _THUMB + 2, row * _THUMB + 2))
    return sheet
