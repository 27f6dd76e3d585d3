"""Images by number: one tensor when the set fits into memory, files read on demand when it does not."""

import hashlib
import io
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustinfer.card import InputSpec
from robustinfer.data import Source
from robustinfer.errors import DataError, InputError
from robustinfer.images import decode_image, picture_shape, read_image

__all__ = [
    "MEMORY",
    "FilePixels",
    "Pixels",
    "TensorPixels",
    "folder_input",
    "folder_pixels",
    "picture_input",
    "picture_pixels",
    "unreadable_numbers",
]

_log = logging.getLogger(__name__)
_ADVICE = "Repair or remove it, or leave it out with --skip-unreadable."

MEMORY = 4 * 2**30
"""Bytes of images up to which a folder is held in memory as one tensor."""


_READING = b"crop, then resize"  # in the digest, so that a run is not resumed on other pixels of the same files


class Pixels(Protocol):
    """Images by number."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> Tensor:
        """The uint8 images of these numbers, (batch, channels, height, width)."""

    def digest(self) -> bytes:
        """Bytes that change when the images do."""


class TensorPixels:
    """All images as one uint8 tensor of shape (count, channels, height, width)."""

    def __init__(self, images: Tensor) -> None:
        self.images = images.contiguous()

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    def __len__(self) -> int:
        return len(self.images)

    def take(self, indices: Tensor) -> Tensor:
        """The images of these numbers."""
        return self.images[indices]

    def digest(self) -> bytes:
        """The SHA-256 of all pixels."""
        return hashlib.sha256(self.images.numpy().data).digest()


class FilePixels:
    """Images that stay on disk. Reading happens in threads: decoding releases the interpreter lock."""

    def __init__(self, files: Sequence[Path], spec: InputSpec, *, root: Path, threads: int = 4) -> None:
        self.files, self.spec, self.root, self.threads = tuple(files), spec, root, threads

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return self.spec.shape

    def __len__(self) -> int:
        return len(self.files)

    def take(self, indices: Tensor) -> Tensor:
        """Read the images of these numbers."""
        images = np.empty((len(indices), *self.shape), dtype=np.uint8)
        with ThreadPoolExecutor(self.threads) as pool:
            for position, image in enumerate(pool.map(self._read, indices.tolist())):
                images[position] = image
        return torch.from_numpy(images)

    def _read(self, number: int) -> npt.NDArray[np.uint8]:
        try:
            return read_image(self.files[number], self.spec)
        except InputError as error:
            raise DataError(f"{error} {_ADVICE}") from error

    def digest(self) -> bytes:
        """The SHA-256 of names and sizes: reading every file of a large set would take as long as an epoch."""
        digest = hashlib.sha256(_READING)
        for file in self.files:
            digest.update(f"{file.relative_to(self.root).as_posix()}\0{file.stat().st_size}\n".encode())
        return digest.digest()


def folder_pixels(root: Path, files: Sequence[Path], spec: InputSpec, *, memory: int = MEMORY) -> Pixels:
    """Image files as a model of this input spec takes them. Up to `memory` bytes are held as one tensor."""
    on_disk = FilePixels(files, spec, root=root)
    if len(files) * spec.size > memory:
        return on_disk
    return TensorPixels(on_disk.take(torch.arange(len(files))))


def picture_pixels(source: Source, spec: InputSpec) -> Pixels:
    """The encoded pictures of a set, as a model of this input spec takes them."""
    if source.files:
        return folder_pixels(source.root, source.files, spec)
    images = np.empty((len(source), *spec.shape), dtype=np.uint8)
    for number in range(len(source)):
        try:
            images[number] = decode_image(source.content(number), spec)
        except InputError as error:
            raise DataError(f"{_place(source, number)}: {error} {_ADVICE}") from error
    return TensorPixels(torch.from_numpy(images))


def unreadable_numbers(source: Source, spec: InputSpec, *, allowed: int) -> list[int]:
    """The pictures that cannot be read, which are logged; more than `allowed` are an error."""
    return _refused(source, lambda number: decode_image(source.content(number), spec), allowed)


def _refused(source: Source, look: Callable[[int], object], allowed: int) -> list[int]:
    found = []
    for number in range(len(source)):
        try:
            look(number)
        except InputError as error:
            found.append(number)
            if len(found) > allowed:
                raise DataError(
                    f"More than {allowed} files are unreadable: {_place(source, number)}: {error} {_ADVICE}"
                ) from error
            _log.warning("left out: %s: %s", _place(source, number), error)
    return found


def _place(source: Source, number: int) -> str:
    return str(source.files[number]) if source.files else f"picture {number} of {source.spec.short}"


def picture_input(source: Source, size: int, *, allowed: int = 0) -> tuple[Source, InputSpec]:
    """What a model of these pictures takes, and the set without up to `allowed` files that are no pictures."""
    left_out = set(_refused(source, lambda number: _shape(source, number), allowed)) if allowed else set()
    if left_out:
        source = source.take([number for number in range(len(source)) if number not in left_out])
    names = [Path(name).name for name in source.names] or [f"picture {number}" for number in range(len(source))]
    shapes = ((name, _shape(source, number)) for number, name in enumerate(names))
    return source, _common_input(source.spec.path, shapes, size)


def _shape(source: Source, number: int) -> tuple[int, int, int]:
    return picture_shape(source.files[number] if source.files else io.BytesIO(source.content(number)))


def folder_input(root: Path, files: Sequence[Path], size: int) -> InputSpec:
    """What a model of these files takes: `size` x `size` pixels, or the size that all of them have if `size` is 0.

    It takes grey images if all files are grey, else colour.
    """
    return _common_input(str(root), ((file.name, picture_shape(file)) for file in files), size)


def _common_input(root: str, shapes: Iterable[tuple[str, tuple[int, int, int]]], size: int) -> InputSpec:
    channels, first, first_name = 1, (0, 0), ""
    try:
        for name, (own, height, width) in shapes:
            channels = max(channels, own)
            if size and channels == 3:
                break  # nothing more to learn
            if not first_name:
                first, first_name = (height, width), name
            if not size and (height, width) != first:
                raise DataError(
                    f"The images of {root} have mixed sizes: {first_name} is {first[0]}x{first[1]}, "
                    f"{name} is {height}x{width}; set `size` to bring them to one (--set size=64)."
                )
    except InputError as error:
        raise DataError(f"{error} {_ADVICE}") from error
    if size:
        return InputSpec(channels, size, size, resize="bilinear")
    return InputSpec(channels, *first)
