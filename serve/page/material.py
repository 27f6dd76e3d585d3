"""What a page shows before anybody brings a picture: files beside a model, as `robust quickstart` writes them.

    images/*.png     pictures to try
    attacked.npz     pictures with a change that fools an ordinary network; one that is among the images has its name
    ordinary.onnx    that network

None of them is needed. A picture, or a network, that does not fit the model is left out.
"""

import dataclasses
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustinfer import Card, Predictor, RobustinferError
from robustinfer.attacked import read_attacked
from robustinfer.images import read_image
from robustinfer.pictures import data_uri

__all__ = ["ATTACKED", "IMAGES", "ORDINARY", "Example", "Material", "material_beside"]

log = logging.getLogger("robustinfer")

Array = npt.NDArray[Any]

IMAGES, ATTACKED, ORDINARY = "images", "attacked.npz", "ordinary.onnx"
_MOST = 24  # examples on a page


@dataclass(frozen=True)
class Example:
    """A picture to try. `direction` is the change that fooled an ordinary network, if one was found, in grey levels."""

    name: str
    image: npt.NDArray[np.uint8]
    direction: npt.NDArray[np.float64] | None = None

    def to_json(self) -> dict[str, Any]:
        """What the page knows of it."""
        return {"name": self.name, "picture": data_uri(self.image), "attacked": self.direction is not None}


@dataclass(frozen=True)
class Material:
    """The examples of a model, and the ordinary network it is compared with (None: the model without its noise)."""

    examples: tuple[Example, ...] = ()
    ordinary: Predictor | None = None

    def direction(self, name: str) -> npt.NDArray[np.float64] | None:
        """The attack direction of an example, None if there is no such example, or none for it."""
        return next((example.direction for example in self.examples if example.name == name), None)


def material_beside(model: Path, card: Card) -> Material:
    """The files beside a model file, as far as they fit its card."""
    folder = model.parent
    pictures = {picture.image.tobytes(): picture for picture in _pictures(folder / IMAGES, card)}
    examples = []
    for attacked in _attacked(folder / ATTACKED, card):
        same = pictures.pop(attacked.image.tobytes(), None)
        examples.append(attacked if same is None else dataclasses.replace(attacked, name=same.name))
    examples.extend(pictures.values())
    return Material(tuple(examples[:_MOST]), _ordinary(folder / ORDINARY, model, card))


def _attacked(path: Path, card: Card) -> Iterator[Example]:
    if not path.is_file():
        return
    try:
        found = read_attacked(path).examples
    except RobustinferError as error:
        log.warning("%s The page has no attack directions.", error)
        return
    for one in found:
        if one.original.shape == card.input.shape and one.original.dtype == np.uint8 and one.truth < len(card.classes):
            change = one.changed.astype(np.float64) - one.original.astype(np.float64)
            yield Example(f"{card.classes[one.truth]}, test image {one.index}", one.original, change)


def _pictures(folder: Path, card: Card) -> Iterator[Example]:
    for path in sorted(folder.glob("*.png")) if folder.is_dir() else ():
        try:
            image = read_image(path, card.input)
        except RobustinferError as error:
            log.warning("The page leaves out an example: %s", error)
        else:
            yield Example(path.stem, image)


def _ordinary(path: Path, model: Path, card: Card) -> Predictor | None:
    if not path.is_file() or path.samefile(model):
        return None
    try:
        found = Predictor.load(path, device="cpu", threads=1)
    except RobustinferError as error:
        log.warning("The page compares with the model itself without noise: %s", error)
        return None
    if found.card.input.shape != card.input.shape or found.card.classes != card.classes:
        log.warning("The page compares with the model itself without noise: %s has other images or classes.", path)
        return None
    return found
