"""Walks: what an ordinary network and the smoothed classifier say along a direction away from an image.

The points of a walk are 8-bit images, which exist: each is rounded before anybody is asked about it, and its distance
is that of the rounded pixels. Whether it lies within a radius is decided in whole numbers.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from robustinfer import Prediction, Predictor
from robustinfer.errors import InputError
from robustinfer.pictures import data_uri
from robustinfer.requests import Request
from robustinfer.settings import GridDomain

__all__ = ["POINTS", "Point", "Walk", "random_direction", "walk"]

POINTS = 33
_SAMPLES = 400  # of the prediction at each point, which mostly ends after the first 100
_DIGITS = 10**6  # a distance is rounded up to as many digits as a radius is rounded down to
_REACH = 2.0  # a walk leads to so many times the radius, or the length of the attack, whichever is longer


@dataclass(frozen=True)
class Point:
    """One image of a walk.

    `distance` is its l2 distance from the first one in pixel units, and `proven` whether that is below the radius.
    `ordinary` and `label` are what the two classifiers say, None where the smoothed one abstains.
    """

    picture: str
    distance: float
    proven: bool
    ordinary: int
    ordinary_name: str
    label: int | None
    class_name: str | None


@dataclass(frozen=True)
class Walk:
    """The points from an image on, in the order of their distances, and the alpha of each smoothed label."""

    points: tuple[Point, ...]
    alpha: float

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"points": [vars(point) for point in self.points], "alpha": self.alpha}


def random_direction(shape: tuple[int, ...], number: int) -> npt.NDArray[np.float64]:
    """Direction `number` of a fixed sequence, uniform on the sphere."""
    return np.random.default_rng(number).standard_normal(shape)


def walk(
    predictor: Predictor,
    ordinary: Predictor | None,
    image: npt.NDArray[Any],
    direction: npt.NDArray[np.float64],
    *,
    radius: float,
    attack: bool = False,
    domain: GridDomain | None = None,
) -> Walk:
    """Ask both classifiers along `direction`, up to twice `radius` or twice an `attack`, whichever is longer.

    Without an `ordinary` network it is the model itself, without its noise. Where nothing is proven (`radius` 0) the
    walk is as long as one standard deviation of the noise.
    """
    if image.dtype != np.uint8:
        raise InputError(f"A walk starts at an 8-bit image, found {image.dtype} pixels: use a PNG or JPEG file.")
    length = float(np.linalg.norm(direction))
    reach = max(_REACH * radius, _REACH * length / 255 if attack else 0.0) or predictor.card.sigma or 1.0
    steps = np.linspace(0.0, 255 * reach / length, POINTS)
    images = np.stack([_moved(image, step * direction) for step in steps])
    squares = [_square(image, changed) for changed in images]
    plain = (ordinary or predictor).scores(images).argmax(axis=1)
    asked = [Request(image=changed, mode="predict", n=_SAMPLES, domain=domain) for changed in images]
    answers = [_prediction(answer) for answer in predictor.answer_many(asked)]
    names = predictor.card.classes
    points = [
        Point(
            picture=data_uri(changed),
            distance=math.ceil(math.sqrt(square) / 255 * _DIGITS) / _DIGITS,
            proven=Fraction(square, 255**2) < Fraction(radius) ** 2,
            ordinary=int(label),
            ordinary_name=names[label],
            label=answer.label,
            class_name=answer.class_name,
        )
        for changed, square, label, answer in zip(images, squares, plain, answers, strict=True)
    ]
    return Walk(tuple(sorted(points, key=lambda point: point.distance)), answers[0].alpha)


def _moved(image: npt.NDArray[Any], change: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    return np.clip(np.rint(image + change), 0, 255).astype(np.uint8)


def _square(image: npt.NDArray[Any], changed: npt.NDArray[np.uint8]) -> int:
    """The square of the distance in grey levels, exactly."""
    return int(((changed.astype(np.int64) - image.astype(np.int64)) ** 2).sum())


def _prediction(answer: Any) -> Prediction:
    if isinstance(answer, Exception):
        raise answer
    assert isinstance(answer, Prediction)
    return answer
