"""Folders of images: one sub-folder a class, with or without `train` and `test` (or `val`) above them."""

from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image, UnidentifiedImageError

from robustinfer.errors import DataError

from .pixels import FilePixels, Pixels, TensorPixels

__all__ = ["MEMORY", "Folder"]

MEMORY = 4 * 2**30
"""Bytes of images up to which a folder is held in memory as one tensor."""

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".pbm"}
_GREY = {"1", "L", "LA", "I", "I;16", "F"}


@dataclass(frozen=True)
class Folder:
    """The image files of one split, in the order of their names, with the number of their class."""

    root: Path
    files: tuple[Path, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]

    @classmethod
    def open(cls, path: Path, split: str) -> "Folder":
        """List PATH/train or PATH/test (or PATH/val); without them, every fifth image of PATH is the test split."""
        if not path.is_dir():
            raise DataError(f"There is no folder {path}: give a folder with one sub-folder a class.")
        names = ("train",) if split == "train" else ("test", "val")
        for name in names:
            if (path / name).is_dir():
                return cls._list(path / name)
        if any((path / name).is_dir() for name in ("train", "test", "val")):
            raise DataError(f"The folder {path} has a part of train/test but no {' or '.join(names)}.")
        return cls._list(path)._fifth(test=split == "test")

    @classmethod
    def _list(cls, root: Path) -> "Folder":
        classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        if len(classes) < 2:
            raise DataError(f"The folder {root} needs one sub-folder for each of two classes or more.")
        files: list[Path] = []
        labels: list[int] = []
        for label, name in enumerate(classes):
            found = sorted(file for file in (root / name).rglob("*") if file.suffix.lower() in _SUFFIXES)
            if not found:
                raise DataError(f"The class folder {root / name} holds no images; fill it or remove it.")
            files += found
            labels += [label] * len(found)
        return cls(root, tuple(files), tuple(labels), tuple(classes))

    def _fifth(self, *, test: bool) -> "Folder":
        chosen = [number for number in range(len(self.files)) if (number % 5 == 4) == test]
        files, labels = tuple(self.files[i] for i in chosen), tuple(self.labels[i] for i in chosen)
        return Folder(self.root, files, labels, self.classes)

    def pixels(self, size: int, *, memory: int = MEMORY) -> Pixels:
        """The images, of `size` x `size` pixels, or of the size that all files have if `size` is 0."""
        shape, channels = self._inspect(size)
        files = FilePixels(self.files, root=self.root, channels=channels, shape=shape)
        if len(self.files) * channels * shape[0] * shape[1] > memory:
            return files
        return TensorPixels(files.take(torch.arange(len(self.files))))

    def _inspect(self, size: int) -> tuple[tuple[int, int], int]:
        """Height, width and channels, from the headers of the files."""
        channels, first = 1, (0, 0)
        for file in self.files:
            try:
                with Image.open(file) as image:
                    found = (image.height, image.width)
                    channels = channels if image.mode in _GREY else 3
            except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
                raise DataError(f"{file} is no readable image ({error}); repair or remove it.") from error
            if size:
                if channels == 3:
                    break  # nothing more to learn
            elif file is self.files[0]:
                first = found
            elif found != first:
                raise DataError(
                    f"The images of {self.root} are of mixed sizes: {self.files[0].name} is {first[0]}x{first[1]}, "
                    f"{file.name} is {found[0]}x{found[1]}; set `size` to bring them to one."
                )
        return ((size, size) if size else first), channels
