"""Noise as a counter-based stream: sample i of seed s is one fixed tensor, whoever computes it and in whatever order.

The words are those of NumPy's `Philox` bit generator (Philox4x64-10) keyed by the seed. An image of d values takes
B = ceil(d/4) blocks of four 64-bit words, and sample i takes the words [4 B i, 4 B i + d) of the stream

    numpy.random.Philox(key=seed).random_raw()

one word per value, in the order channel, row, column. (NumPy steps its counter before the first block, so block b of
sample i is Philox with counter 1 + B i + b.)

What a word becomes depends on the domain (`domains.py`).
"""

import secrets
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from .domains import COARSE_LEVELS, FINE_LEVELS, Domain, GridDomain
from .tables import coarse_table, fine_table

__all__ = [
    "add_noise",
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

_CHUNK = 1 << 16  # words turned into noise at once: small enough for all intermediate arrays to stay in the cache


def fresh_seed() -> int:
    """A 64-bit seed from the operating system's entropy."""
    return secrets.randbits(64)


def derive_seed(seed: int, index: int) -> int:
    """Seed number `index` of a family named by `seed`: one Philox block, counted by the index, under another key.

    The second key word sets these streams apart from the noise itself, whose second key word is 0.
    """
    return int(np.random.Philox(key=(1 << 64) | seed, counter=index).random_raw())


def words(seed: int, first: int, count: int, size: int) -> Words:
    """The words of samples first ... first + count - 1, an array of shape (count, size)."""
    blocks = -(-size // 4)
    philox = np.random.Philox(key=seed, counter=first * blocks)
    # Over the full range `integers` hands out the raw words unchanged, several times faster than `random_raw`.
    drawn = np.random.Generator(philox).integers(
        0, 0xFFFFFFFFFFFFFFFF, size=(count, 4 * blocks), dtype=np.uint64, endpoint=True
    )
    return drawn[:, :size]


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


def total_variation(domain: Domain, sigma: float, size: int) -> float:
    """Distance between the noise that is drawn and the noise of the theorem, for an image of `size` values.

    A bound on p_A of the drawn noise is one for the exact rounded Gaussian after subtracting this. For continuous
    noise it is 0 by convention: what is not covered there, the rounding of x + e, is not a matter of the words.
    """
    if domain == "continuous":
        return 0.0
    return size * (coarse_table if domain == "8-bit" else fine_table)(float(sigma)).total_variation


def on_fine_grid(image: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """The nearest point of the 16-bit grid, in grid steps: exact, as the product of a float and 65535 fits a double."""
    if image.dtype == np.uint8:
        return image.astype(np.int32) * np.int32(FINE_LEVELS // COARSE_LEVELS)
    nearest: npt.NDArray[np.int32] = np.rint(image.astype(np.float64) * FINE_LEVELS).astype(np.int32)
    return nearest


def add_noise(
    image: npt.NDArray[Any],
    *,
    domain: Domain,
    sigma: float,
    seed: int,
    first: int,
    out: npt.NDArray[np.float32],
) -> None:
    """Fill `out` (count, C, H, W) with samples first, first + 1, ... of the image (C, H, W).

    The image is uint8 in the 8-bit domain, uint8 or float32 in the 16-bit domain, and float32 for continuous noise.
    """
    count, size = len(out), image.size
    pixels, target = image.reshape(-1), out.reshape(count, size)
    rows = max(1, _CHUNK // max(size, 1))
    base = on_fine_grid(pixels) if domain == "16-bit" else pixels
    for row in range(0, count, rows):
        piece = target[row : row + rows]
        drawn = words(seed, first + row, len(piece), size)
        if domain == "continuous":
            z = continuous(drawn)
            z *= sigma
            np.add(z.astype(np.float32), base, out=piece)
            continue
        noise = grid_steps(drawn, sigma, domain)
        noise += base
        # float32(x + N) * float32(1/levels): every engine and the sampler graph do these two steps, so all agree. The
        # first is exact: |x + N| stays below 2^24 on both grids.
        step = np.float32(1 / (COARSE_LEVELS if domain == "8-bit" else FINE_LEVELS))
        np.multiply(noise, step, out=piece, dtype=np.float32, casting="unsafe")
