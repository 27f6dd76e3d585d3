"""Noise as a counter-based stream: sample i of seed s is one fixed tensor, whoever computes it and in whatever order.

The words are those of NumPy's `Philox` bit generator (Philox4x64-10) keyed by the seed,

    numpy.random.Philox(key=seed).random_raw()

in blocks of four 64-bit words. A sample that takes w words has B = ceil(w/4) blocks, and sample i takes the words
[4 B i, 4 B i + w). (NumPy steps its counter before the first block, so block b of sample i is Philox with counter
1 + B i + b.) Values are in the order channel, row, column. What the words become depends on the noise (`domains.py`):

* `lanes`: in the 8-bit domain a word has four values (`lanes.py`).
* `integer`, `integer-16`, `continuous`: one word per value. The first is what 8-bit certificates had before `lanes`.
"""

import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from .domains import COARSE_LEVELS, FINE_LEVELS, GridDomain, NoiseName, domain_of_noise
from .lanes import lane_layout, look_up_lanes, settle_open
from .tables import coarse_table, fine_table

__all__ = [
    "add_noise",
    "begin_noise",
    "continuous",
    "derive_seed",
    "fresh_seed",
    "grid_steps",
    "on_fine_grid",
    "thresholds",
    "total_variation",
    "words",
]

Words = npt.NDArray[np.uint64]

_CHUNK = 1 << 18  # values turned into noise at once: few enough for the arrays in between to stay in the second cache


def fresh_seed() -> int:
    """A 64-bit seed from the operating system's entropy."""
    return secrets.randbits(64)


def derive_seed(seed: int, index: int) -> int:
    """Seed number `index` of a family named by `seed`: one Philox block, counted by the index, under another key.

    The second key word sets these streams apart from the noise itself, whose second key word is 0.
    """
    return int(np.random.Philox(key=(1 << 64) | seed, counter=index).random_raw())


def words(seed: int, first: int, count: int, size: int) -> Words:
    """The words of samples first ... first + count - 1, each of `size` words: an array of shape (count, size)."""
    return _Stream(seed, first, size).draw(count)


class _Stream:
    """The words of samples first, first + 1, ..., some samples at a time: to set the generator up costs as much as to
    draw thousands of words."""

    def __init__(self, seed: int, first: int, size: int) -> None:
        self._size, self._blocks = size, -(-size // 4)
        self._generator = np.random.Generator(np.random.Philox(key=seed, counter=first * self._blocks))

    def draw(self, count: int) -> Words:
        """The words of the next samples, of shape (count, size)."""
        # Over the full range `integers` hands out the raw words unchanged, several times faster than `random_raw`.
        drawn = self._generator.integers(
            0, 0xFFFFFFFFFFFFFFFF, size=(count, 4 * self._blocks), dtype=np.uint64, endpoint=True
        )
        return drawn[:, : self._size]


def thresholds(sigma: float, domain: GridDomain) -> tuple[Words, int]:
    """The thresholds T_k of a grid's noise in ascending order, and the k of the first: P(N <= k) = T_k / 2^64."""
    if domain == "8-bit":
        coarse = coarse_table(float(sigma))
        return coarse.thresholds, coarse.smallest
    fine = fine_table(float(sigma))
    return fine.thresholds[:-1], fine.smallest


def grid_steps(drawn: Words, sigma: float, domain: GridDomain) -> npt.NDArray[Any]:
    """Words to noise in whole grid steps: the rounded Gaussian, up to `total_variation`."""
    return (coarse_table(float(sigma)) if domain == "8-bit" else fine_table(float(sigma))).look_up(drawn)


def continuous(drawn: Words) -> npt.NDArray[np.float64]:
    """Words to standard normal values: the quantile of the word's middle, its top bit giving the sign.

    Both tails are evaluated as lower tails, where doubles are dense: |z| reaches 9.2.
    """
    lower = (drawn & np.uint64(0x7FFFFFFFFFFFFFFF)).astype(np.float64)
    z: npt.NDArray[np.float64] = ndtri((lower + 0.5) * 2.0**-64)
    return np.where(drawn >> np.uint64(63), -z, z)


def total_variation(noise: NoiseName, sigma: float, size: int) -> float:
    """Distance between the noise that is drawn and the noise of the theorem, for an image of `size` values.

    A bound on p_A of the drawn noise is one for the exact rounded Gaussian after subtracting this. For continuous
    noise it is 0 by convention: what is not covered there, the rounding of x + e, is not a matter of the words.
    """
    domain = domain_of_noise(noise)
    if domain == "continuous":
        return 0.0
    table = size * (coarse_table if domain == "8-bit" else fine_table)(float(sigma)).total_variation
    return table + (lane_layout(float(sigma), size).total_variation if noise == "philox4x64-10/lanes" else 0.0)


def on_fine_grid(image: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """The nearest point of the 16-bit grid, in grid steps: exact, as the product of a float and 65535 fits a double."""
    if image.dtype == np.uint8:
        return image.astype(np.int32) * np.int32(FINE_LEVELS // COARSE_LEVELS)
    nearest: npt.NDArray[np.int32] = np.rint(image.astype(np.float64) * FINE_LEVELS).astype(np.int32)
    return nearest


def add_noise(
    image: npt.NDArray[Any],
    *,
    noise: NoiseName,
    sigma: float,
    seed: int,
    first: int,
    out: npt.NDArray[np.float32],
) -> None:
    """Fill `out` (count, C, H, W) with samples first, first + 1, ... of the image (C, H, W).

    The image is uint8 in the 8-bit domain, uint8 or float32 in the 16-bit domain, and float32 for continuous noise.
    """
    begin_noise(image, noise=noise, sigma=sigma, seed=seed, first=first, out=out)()


def begin_noise(
    image: npt.NDArray[Any],
    *,
    noise: NoiseName,
    sigma: float,
    seed: int,
    first: int,
    out: npt.NDArray[np.float32],
) -> Callable[[], None]:
    """As `add_noise`, in two parts: `out` is filled when what is returned has been called, too.

    The first part is long calls that leave the interpreter to others, so threads do it side by side. The second is
    many short ones, between which threads would wait for each other (measured: longer than the work takes).
    """
    count, size = len(out), image.size
    pixels, target = image.reshape(-1), out.reshape(count, size)
    rows = max(1, _CHUNK // max(size, 1))
    begin = {"philox4x64-10/lanes": _begin_lanes, "philox4x64-10/continuous": _add_continuous}.get(noise, _add_steps)
    domain = domain_of_noise(noise)
    base = pixels.astype(np.float32) if domain == "8-bit" else on_fine_grid(pixels) if domain == "16-bit" else pixels
    stream = _Stream(seed, first, lane_layout(float(sigma), size).words if begin is _begin_lanes else size)
    rest: list[Callable[[], None]] = []
    for row in range(0, count, rows):
        some = target[row : row + rows]
        rest.append(begin(base, noise, float(sigma), stream.draw(len(some)), some))

    def finish_all() -> None:
        for finish in rest:
            finish()

    return finish_all


def _begin_lanes(
    base: npt.NDArray[Any], noise: NoiseName, sigma: float, drawn: Words, out: npt.NDArray[np.float32]
) -> Callable[[], None]:
    layout, step = lane_layout(sigma, base.size), _step(noise)
    look_up_lanes(drawn, sigma, layout, out)
    np.add(out, base, out=out)
    np.multiply(out, step, out=out)
    found = out.reshape(-1)
    places = np.flatnonzero(np.isinf(found))  # what was open is still infinite

    def finish() -> None:
        steps = settle_open(drawn, sigma, layout, places).astype(np.float32)
        found[places] = (steps + base[places % base.size]) * step

    return finish


def _add_steps(
    base: npt.NDArray[Any], noise: NoiseName, sigma: float, drawn: Words, out: npt.NDArray[np.float32]
) -> Callable[[], None]:
    domain: GridDomain = "8-bit" if domain_of_noise(noise) == "8-bit" else "16-bit"
    np.add(grid_steps(drawn, sigma, domain), base, out=out, dtype=base.dtype, casting="unsafe")
    out *= _step(noise)
    return _nothing_left


def _add_continuous(
    base: npt.NDArray[Any], noise: NoiseName, sigma: float, drawn: Words, out: npt.NDArray[np.float32]
) -> Callable[[], None]:
    z = continuous(drawn)
    z *= sigma
    np.add(z.astype(np.float32), base, out=out)
    return _nothing_left


def _nothing_left() -> None:
    """The second part of noise that has none."""


def _step(noise: NoiseName) -> np.float32:
    """A grid step: every engine and the sampler graph compute float32(x + N) * float32(1/levels), so that all agree.

    The sum is exact: |x + N| stays below 2^24 on both grids.
    """
    return np.float32(1 / (COARSE_LEVELS if domain_of_noise(noise) == "8-bit" else FINE_LEVELS))
