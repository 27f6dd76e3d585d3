"""Float rounding breaks continuous noise, and no certificate that can be asked for.

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
from robustinfer.errors import SettingError
from robustinfer.smoothing.noise import add_noise

SHAPE = (1, 16, 16)
SIGMA = 0.5
STEP = 13  # grey levels: 13/255 at each of 256 pixels is an l2 distance of 0.816

ASKED = {  # every way of asking for a certificate: the type of the pixels, and the domain
    "8-bit": ("uint8", None),
    "16-bit": ("float32", None),
    "16-bit, from doubles": ("float64", None),
    "16-bit, from grey levels": ("uint8", "16-bit"),
}


def votes_by_low_bits(images: Any) -> Any:
    """Class 1 if some pixel close to zero is no multiple of 2^-28."""
    pixels = images.reshape(len(images), -1).astype(np.float64)
    close = (np.abs(pixels) < 2.0**-6) & (pixels != 0)
    fine = pixels * 2.0**28 != np.floor(pixels * 2.0**28)
    seen = (close & fine).any(axis=1)
    return np.stack([~seen, seen], axis=1)


def votes_by_grid(images: Any) -> Any:
    """Class 1 if the first pixel is a multiple of 1/255, as every noisy 8-bit image has it, and few others."""
    first = images.reshape(len(images), -1)[:, 0].astype(np.float64) * 255
    on_grid = np.abs(first - np.rint(first)) < 1e-4
    return np.stack([~on_grid, on_grid], axis=1)


@pytest.fixture
def attacked(predictor_of: Callable[..., Predictor]) -> Predictor:
    return predictor_of(votes_by_low_bits, shape=SHAPE, sigma=SIGMA, batch=500)


def at(level: Any, dtype: Any) -> Any:
    image = np.full(SHAPE, level, dtype=np.uint8)
    return image if dtype == "uint8" else image.astype(dtype) / np.dtype(dtype).type(255)


def distance() -> Any:
    return float(np.linalg.norm(at(STEP, "uint8").astype(float) / 255))


def test_continuous_noise_would_give_a_false_certificate(attacked: Any) -> None:
    """At x nearly all votes are for class 1, proving a radius that contains x'; at x' all but a few for class 0."""
    votes = []
    for level in (0, STEP):
        noisy = np.empty((2000, *SHAPE), dtype=np.float32)
        add_noise(at(level, "float32"), noise="philox4x64-10/continuous", sigma=SIGMA, seed=1, first=0, out=noisy)
        votes.append(int(votes_by_low_bits(noisy).argmax(axis=1).sum()))
    assert votes[0] > 1990
    assert votes[1] < 10
    with pytest.raises(SettingError, match="integer for noise, found 'continuous'"):
        attacked.certify(at(0, "float32"), noise="continuous")
    with pytest.raises(SettingError, match="Expected 8-bit or 16-bit for domain, found 'continuous'"):
        attacked.certify(at(0, "float32"), domain="continuous")


@pytest.mark.parametrize("how", ASKED)
def test_what_can_be_asked_for_gives_none(how: Any, attacked: Any) -> None:
    """The same classifier, on a grid: both points get the same label, or no such radius."""
    dtype, domain = ASKED[how]
    near, far = (attacked.certify(at(level, dtype), n=2000, seed=1, domain=domain) for level in (0, STEP))
    assert near.domain == far.domain == how.partition(",")[0]
    assert near.label == far.label or max(near.radius, far.radius) < distance()


@pytest.mark.parametrize("how", ASKED)
def test_the_sum_of_image_and_grid_noise_forgets_the_image(how: Any, predictor_of: Any) -> None:
    """Why: the noisy image is one of the same numbers whatever the image was, so no bit gives it away."""
    dtype, domain = ASKED[how]
    seen = []

    def record(images: Any) -> Any:
        seen.append(np.unique(images))
        return np.zeros((len(images), 2))

    predictor = predictor_of(record, shape=SHAPE, sigma=SIGMA, batch=500)
    for level in (0, STEP):
        predictor.certify(at(level, dtype), n=500, n0=0, seed=level, domain=domain)
    levels = 255 if how == "8-bit" else 65535
    grid = np.arange(-10 * levels, 10 * levels).astype(np.float32) * np.float32(1 / levels)
    assert all(np.isin(values, grid).all() for values in seen)


def test_each_domain_speaks_of_its_own_classifier(predictor_of: Any) -> None:
    """A classifier that reads the 8-bit grid: 8-bit images all get "grid"; among all images nearly none does.

    The domain depends on the type alone: grey levels asked for in the 16-bit domain cast the votes of the same floats.
    """
    predictor = predictor_of(votes_by_grid, shape=SHAPE, sigma=SIGMA, batch=500)
    for level in (0, 1, 255):
        coarse = predictor.certify(at(level, "uint8"), n=1000, seed=5)
        fine = predictor.certify(at(level, "float32"), n=1000, seed=5)
        asked = predictor.certify(at(level, "uint8"), n=1000, seed=5, domain="16-bit")
        assert (coarse.label, coarse.domain, fine.label, fine.domain) == (1, "8-bit", 0, "16-bit")
        assert (asked.counts, asked.label, asked.radius) == (fine.counts, fine.label, fine.radius)
        assert "every 8-bit image" in coarse.guarantee
        assert "[0,1]" in fine.guarantee
        assert "rounded to 16 bits" in fine.guarantee
    off = at(1, "float32") * np.float32(0.97)  # an image between the grey levels gets the label of its neighbours
    assert predictor.certify(off, n=1000, seed=6).label == 0
