"""Float rounding breaks certificates of continuous noise, and none of integer noise.

The classifier looks at the low bits of the noisy pixels. In float32, 0 + e keeps all low bits of a small e, while
0.05 + e near zero is the difference of two numbers of about 0.05, and so a multiple of their unit in the last place,
2^-28: the low bits of the sum tell whether x was 0. The theorem speaks of real addition, where
both look alike. (Voracek and Hein, "Sound randomized smoothing in floating-point arithmetics", ICLR 2023.)
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from robustinfer import Predictor

SHAPE = (1, 16, 16)
SIGMA = 0.5
STEP = 13  # grey levels: 13/255 at each of 256 pixels is an l2 distance of 0.816


def votes_by_low_bits(images: Any) -> Any:
    """Class 1 if some pixel close to zero is no multiple of 2^-28."""
    pixels = images.reshape(len(images), -1).astype(np.float64)
    close = (np.abs(pixels) < 2.0**-6) & (pixels != 0)
    fine = pixels * 2.0**28 != np.floor(pixels * 2.0**28)
    seen = (close & fine).any(axis=1)
    return np.stack([~seen, seen], axis=1)


@pytest.fixture
def attacked(predictor_of: Callable[..., Predictor]) -> Predictor:
    return predictor_of(votes_by_low_bits, shape=SHAPE, sigma=SIGMA, batch=500)


def at(level: Any, dtype: Any) -> Any:
    image = np.full(SHAPE, level, dtype=np.uint8)
    return image if dtype == "uint8" else image.astype(np.float32) / np.float32(255)


def distance() -> Any:
    return float(np.linalg.norm(at(STEP, "uint8").astype(float) / 255))


def test_continuous_noise_gives_a_false_certificate(attacked: Any) -> None:
    """x is certified as class 1 with a radius that contains x', and x' is certified as class 0."""
    near, far = (attacked.certify(at(level, "float32"), n=2000, seed=1) for level in (0, STEP))
    assert near.label == 1
    assert near.radius > distance()
    assert far.label == 0


def test_integer_noise_gives_none(attacked: Any) -> None:
    """The same classifier, on the grid of 8-bit images: both points get the same label, or no such radius."""
    near, far = (attacked.certify(at(level, "uint8"), n=2000, seed=1) for level in (0, STEP))
    assert near.noise.endswith("integer")
    assert near.label == far.label or max(near.radius, far.radius) < distance()


def test_the_sum_of_grey_level_and_integer_noise_forgets_the_image(
    attacked: Any, predictor_of: Callable[..., Predictor]
) -> None:
    """Why: the noisy image is one of the same numbers k/255 whatever the image was, so no bit gives it away."""
    seen = []

    def record(images: Any) -> Any:
        seen.append(np.unique(images))
        return np.zeros((len(images), 2))

    predictor = predictor_of(record, shape=SHAPE, sigma=SIGMA, batch=500)
    for level in (0, STEP):
        predictor.certify(at(level, "uint8"), n=500, n0=0, seed=level)
    grid = np.arange(-3000, 3000).astype(np.float32) * np.float32(1 / 255)
    assert all(np.isin(values, grid).all() for values in seen)
