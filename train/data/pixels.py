"""Images by number: one tensor when the set fits into memory, files read on demand when it does not."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from robustinfer.errors import DataError

__all__ = ["MEMORY", "FilePixels", "Pixels", "TensorPixels", "folder_pixels", "read_pixels"]

MEMORY = 4 * 2**30
"""Bytes of images up to which a folder is held in memory as one tensor."""

_GREY = {"1", "L", "LA", "I", "I;16", "F"}
_UNREADABLE = (UnidentifiedImageError, OSError, Image.DecompressionBombError)


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

    def __init__(
        self, files: Sequence[Path], *, root: Path, channels: int, shape: tuple[int, int], threads: int = 4
    ) -> None:
        self.files, self.root, self.threads = tuple(files), root, threads
        self.shape = (channels, *shape)

    def __len__(self) -> int:
        return len(self.files)

    def take(self, indices: Tensor) -> Tensor:
        """Read the images of these numbers."""
        channels, height, width = self.shape
        with ThreadPoolExecutor(self.threads) as pool:
            images = pool.map(lambda i: read_pixels(self.files[i], channels, (height, width)), indices.tolist())
            return torch.stack([torch.from_numpy(image) for image in images])

    def digest(self) -> bytes:
        """The SHA-256 of names and sizes: reading every file of a large set would take as long as an epoch."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(f"{file.relative_to(self.root).as_posix()}\0{file.stat().st_size}\n".encode())
        return digest.digest()


def read_pixels(file: Path, channels: int, shape: tuple[int, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """One image as uint8 (channels, height, width): the shorter side is scaled to fit, then the centre is cropped."""
    try:
        with Image.open(file) as opened:
            image = opened.convert("L" if channels == 1 else "RGB")
    except _UNREADABLE as error:
        raise DataError(f"{file} is no readable image ({error}); repair or remove it.") from error
    height, width = shape
    if image.size != (width, height):
        scale = max(height / image.height, width / image.width)
        scaled = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
        image = image.resize(scaled, Image.Resampling.BILINEAR)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
    array = np.array(image, dtype=np.uint8)
    return array[None] if channels == 1 else np.ascontiguousarray(array.transpose(2, 0, 1))


def folder_pixels(root: Path, files: Sequence[Path], size: int, *, memory: int = MEMORY) -> Pixels:
    """Image files, of `size` x `size` pixels, or of the size that all of them have if `size` is 0.

    Up to `memory` bytes are held as one tensor.
    """
    channels, shape = _inspect(root, files, size)
    on_disk = FilePixels(files, root=root, channels=channels, shape=shape)
    if len(files) * channels * shape[0] * shape[1] > memory:
        return on_disk
    return TensorPixels(on_disk.take(torch.arange(len(files))))


def _inspect(root: Path, files: Sequence[Path], size: int) -> tuple[int, tuple[int, int]]:
    """Channels, height and width, from the headers of the files."""
    channels, first = 1, (0, 0)
    for number, file in enumerate(files):
        try:
            with Image.open(file) as image:
                found = (image.height, image.width)
                channels = channels if image.mode in _GREY else 3
        except _UNREADABLE as error:
            raise DataError(f"{file} is no readable image ({error}); repair or remove it.") from error
        if size and channels == 3:
            break  # nothing more to learn
        first = first if number else found
        if not size and found != first:
            raise DataError(
                f"The images of {root} are of mixed sizes: {files[0].name} is {first[0]}x{first[1]}, "
                f"{file.name} is {found[0]}x{found[1]}; set `size` to bring them to one."
            )
    return channels, ((size, size) if size else first)
