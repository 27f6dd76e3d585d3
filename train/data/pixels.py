"""Images by number: one tensor when the set fits into memory, files read on demand when it does not."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustinfer.card import InputSpec
from robustinfer.errors import DataError, InputError
from robustinfer.images import picture_shape, read_image

__all__ = ["MEMORY", "FilePixels", "Pixels", "TensorPixels", "folder_input", "folder_pixels"]

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
            raise DataError(f"{error} Repair or remove it.") from error

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


def folder_input(root: Path, files: Sequence[Path], size: int) -> InputSpec:
    """What a model of these files takes: `size` x `size` pixels, or the size that all of them have if `size` is 0.

    It takes grey images if all files are grey, else colour.
    """
    channels, first = 1, (0, 0)
    for number, file in enumerate(files):
        try:
            own, *found = picture_shape(file)
        except InputError as error:
            raise DataError(f"{error} Repair or remove it.") from error
        channels = max(channels, own)
        if size and channels == 3:
            break  # nothing more to learn
        first = first if number else (found[0], found[1])
        if not size and (found[0], found[1]) != first:
            raise DataError(
                f"The images of {root} have mixed sizes: {files[0].name} is {first[0]}x{first[1]}, "
                f"{file.name} is {found[0]}x{found[1]}; set `size` to bring them to one."
            )
    if size:
        return InputSpec(channels, size, size, resize="bilinear")
    return InputSpec(channels, *first)
