"""What a wrapped network does with images: photographs to measure on, and how many labels survive noise."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustinfer.card import InputSpec
from robustinfer.errors import DataError, ImageFileError
from robustinfer.images import IMAGE_SUFFIXES, in_batches, read_image

from ..acceptance import Images, noisy_copies, synthetic_images

__all__ = ["Photographs", "UnderNoise", "read_photographs", "under_noise"]

Scores = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Photographs(Images):
    """Images to measure on, with their labels if the folder has one sub-folder per class."""

    labels: npt.NDArray[np.int64] | None = None
    unreadable: int = 0

    def take(self, chosen: slice | npt.NDArray[np.int64]) -> "Photographs":
        """Some of them."""
        labels = None if self.labels is None else self.labels[chosen]
        return Photographs(self.source, self.pixels[chosen], labels)


@dataclass(frozen=True)
class UnderNoise:
    """How a network does under noise: `kept` is the share of noisy copies that have the label of the clean image.

    `accuracy` and `noisy_accuracy`, of clean images and of noisy copies, are known where the images have labels.
    """

    sigma: float
    images: str
    count: int
    copies: int
    kept: float
    accuracy: float | None
    noisy_accuracy: float | None

    def to_json(self) -> dict[str, Any]:
        """The figures as they stand in the card."""
        return dataclasses.asdict(self)

    @property
    def sentence(self) -> str:
        """What to expect of certificates, in a sentence."""
        keeps = f"under sigma {self.sigma:g} this network keeps {self.kept:.0%} of its labels"
        if self.noisy_accuracy is not None:
            keeps += f" (accuracy {self.accuracy:.0%} without noise, {self.noisy_accuracy:.0%} under it)"
        if self.images == "synthetic":
            return f"{keeps} on synthetic images, which says little: measure on your own with --images"
        if self.kept < 0.5:
            return f"{keeps} and will mostly abstain or give other labels: fine-tune it with `robust train --from`"
        if self.kept < 0.9:
            return f"{keeps}: some images will get an abstention or a small radius; training it with noise helps"
        return f"{keeps} and can be certified as it is"


def read_photographs(folder: Path | None, spec: InputSpec, classes: Sequence[str], *, limit: int) -> Photographs:
    """At most `limit` images of a folder, evenly spread over its sorted names; without a folder synthetic ones."""
    if folder is None:
        made = synthetic_images(spec)
        return Photographs(made.source, made.pixels)
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder} with images.")
    found = sorted(file for file in folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)
    if not found:
        raise DataError(f"The folder {folder} holds no images ({', '.join(IMAGE_SUFFIXES)}).")
    chosen = [found[i] for i in np.unique(np.linspace(0, len(found) - 1, min(limit, len(found))).astype(int))]
    images, names, unreadable = [], [], 0
    for file in chosen:
        try:
            pixels = read_image(file, spec)
        except ImageFileError:
            unreadable += 1
            continue
        images.append(pixels if pixels.dtype == np.uint8 else np.rint(pixels * 255).astype(np.uint8))
        names.append(file.parent.name)
    if not images:
        raise DataError(f"None of the {len(chosen)} images tried in {folder} can be read.")
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.array([numbers[name] for name in names]) if all(name in numbers for name in names) else None
    return Photographs(folder.name or "images", np.stack(images), labels, unreadable)


def under_noise(
    scores: Scores, images: Photographs, sigma: float, *, copies: int, progress: Callable[[float], None]
) -> UnderNoise:
    """Count the labels that noise leaves as they are, on `copies` noisy copies of each image."""
    clean = images.pixels * np.float32(1 / 255)
    plain = np.concatenate([scores(batch) for _, batch in in_batches(clean, 32)]).argmax(1)
    kept, right, count = 0, 0, 0
    for image, _, noisy in noisy_copies(images, sigma, copies * len(clean)):
        labels = scores(noisy).argmax(1)
        kept += int((labels == plain[image]).sum())
        right += int((labels == images.labels[image]).sum()) if images.labels is not None else 0
        count += len(labels)
        progress(len(labels))
    known = images.labels is not None
    return UnderNoise(
        sigma=sigma,
        images=images.source,
        count=len(clean),
        copies=copies,
        kept=round(kept / count, 4),
        accuracy=round(float((plain == images.labels).mean()), 4) if known else None,
        noisy_accuracy=round(right / count, 4) if known else None,
    )
