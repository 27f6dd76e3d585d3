"""Noise as a counter-based stream: sample i of seed s is one fixed tensor, whoever computes it and in whatever order.

The words are those of NumPy's `Philox` bit generator (Philox4x64-10) keyed by the seed. An image of d values takes
B = ceil(d/4) blocks of four 64-bit words, and sample i takes the words [4 B i, 4 B i + d) of the stream

    numpy.random.Philox(key=seed).random_raw()

one word a value, in the order channel, row, column. (NumPy steps its counter before the first block, so block b of
sample i is Philox with counter 1 + B i + b.) There are two ways to use a word:

* `integer`: noise on the grid of 8-bit images, the rounded Gaussian. x + N is exact in integers, so the certificate is
  sound although computers round (Voracek and Hein, arXiv 2207.07209). The default for uint8 images.
* `continuous`: the Gaussian quantile of the word, in double precision, then added in single precision. For images that
  are not on that grid; the rounding of x + e is not covered by the theorem.
"""

import functools
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from .kinds import NoiseKind

__all__ = [
    "NoiseKind",
    "add_noise",
    "continuous",
    "derive_seed",
    "fresh_seed",
    "integer",
    "integer_thresholds",
    "noise_name",
    "total_variation",
    "words",
]

Words = npt.NDArray[np.uint64]

_LEVELS = 255  # grid steps in the unit of pixels
_TAIL_ERROR = 2.0**-50  # relative error of a computed tail Phi(-x), in units of 1 + x^2 (checked by the tests)
_CHUNK = 1 << 16  # words turned into noise at once: small enough for all intermediate arrays to stay in the cache


def fresh_seed() -> int:
    """A 64-bit seed from the operating system's entropy."""
    return secrets.randbits(64)


def derive_seed(seed: int, index: int) -> int:
    """Seed number `index` of a family named by `seed`: one Philox block, counted by the index, under another key.

    The second key word sets these streams apart from the noise itself, whose second key word is 0.
    """
    return int(np.random.Philox(key=(1 << 64) | seed, counter=index).random_raw())


def noise_name(kind: NoiseKind) -> str:
    """How a certificate names the noise."""
    return f"philox4x64-10/{kind}"


def words(seed: int, first: int, count: int, size: int) -> Words:
    """The words of samples first ... first + count - 1, an array of shape (count, size)."""
    blocks = -(-size // 4)
    philox = np.random.Philox(key=seed, counter=first * blocks)
    # Over the full range `integers` hands out the raw words unchanged, several times faster than `random_raw`.
    drawn = np.random.Generator(philox).integers(
        0, 0xFFFFFFFFFFFFFFFF, size=(count, 4 * blocks), dtype=np.uint64, endpoint=True
    )
    return drawn[:, :size]


@dataclass(frozen=True)
class _IntegerTable:
    """The rounded Gaussian: P(N <= k) = T_k / 2^64 with T_k = round(2^64 Phi((k + 1/2) / (255 sigma)))."""

    thresholds: Words  # T_k ascending, for k = smallest, smallest + 1, ...
    smallest: int
    cells: npt.NDArray[Any]  # value for each pattern of a word's top 16 bits, or `ambiguous`
    ambiguous: int
    total_variation: float

    def look_up(self, drawn: Words) -> npt.NDArray[Any]:
        """N = smallest + #{k: T_k <= word}. The top 16 bits settle about 99 % of the words."""
        top = (drawn >> np.uint64(48)).view(np.int64)
        values: npt.NDArray[Any] = self.cells.take(
            top, mode="clip"
        )  # nothing to clip: it only spares the check of the bounds
        flat = values.reshape(-1)
        open_ones = np.flatnonzero(flat == self.ambiguous)
        flat[open_ones] = self._settle(drawn.reshape(-1)[open_ones])
        return values

    def _settle(self, drawn: Words) -> npt.NDArray[Any]:
        return (np.searchsorted(self.thresholds, drawn, side="right") + self.smallest).astype(self.cells.dtype)


def integer_thresholds(sigma: float) -> tuple[Words, int]:
    """The thresholds T_k in ascending order, and the k of the first of them."""
    table = _integer_table(float(sigma))
    return table.thresholds, table.smallest


def integer(drawn: Words, sigma: float) -> npt.NDArray[Any]:
    """Words to integer noise in grid steps: P(N = k) = P(round(255 sigma Z) = k) up to `total_variation`."""
    return _integer_table(float(sigma)).look_up(drawn)


def continuous(drawn: Words) -> npt.NDArray[np.float64]:
    """Words to standard normal values: the quantile of the word's middle, its top bit giving the sign.

    Both tails are evaluated as lower tails, where doubles are dense: |z| reaches 9.2.
    """
    lower = (drawn & np.uint64(0x7FFFFFFFFFFFFFFF)).astype(np.float64)
    z: npt.NDArray[np.float64] = ndtri((lower + 0.5) * 2.0**-64)
    return np.where(drawn >> np.uint64(63), -z, z)


def total_variation(kind: NoiseKind, sigma: float, size: int) -> float:
    """Distance between the noise that is drawn and the noise of the theorem, for an image of `size` values.

    A bound on p_A of the drawn noise is one for the exact rounded Gaussian after subtracting this. For continuous
    noise it is 0 by convention: what is not covered there, the rounding of x + e, is no matter of the words.
    """
    return size * _integer_table(float(sigma)).total_variation if kind == "integer" else 0.0


def add_noise(
    image: npt.NDArray[Any],
    *,
    kind: NoiseKind,
    sigma: float,
    seed: int,
    first: int,
    out: npt.NDArray[np.float32],
) -> None:
    """Fill `out` (count, C, H, W) with samples first, first + 1, ... of the image (C, H, W).

    The image is uint8 for integer noise and float32 for continuous noise.
    """
    count, size = len(out), image.size
    pixels, target = image.reshape(-1), out.reshape(count, size)
    rows = max(1, _CHUNK // max(size, 1))
    if kind == "integer":
        table = _integer_table(float(sigma))
        base = pixels.astype(table.cells.dtype)
        for row in range(0, count, rows):
            piece = target[row : row + rows]
            noise = table.look_up(words(seed, first + row, len(piece), size))
            noise += base
            # float32(x + N) * float32(1/255): every engine and the sampler graph do these two steps, so all agree.
            np.multiply(noise, np.float32(1 / _LEVELS), out=piece, dtype=np.float32, casting="unsafe")
    else:
        for row in range(0, count, rows):
            piece = target[row : row + rows]
            z = continuous(words(seed, first + row, len(piece), size))
            z *= sigma
            np.add(z.astype(np.float32), pixels, out=piece)


@functools.lru_cache(maxsize=16)
def _integer_table(sigma: float) -> _IntegerTable:
    """Thresholds, look-up table and error bound for one sigma.

    The upper half is mirrored from the lower one, so that every threshold comes from a small tail, which doubles hold
    with full relative accuracy. Thresholds that round to 0 or 2^64 are left out: their values never occur.

    Error: |T_k / 2^64 - Phi(-x)| <= 2^-65 (rounding of T_k) + 2^-50 (1 + x^2) Phi(-x), where the x^2 stems from the
    rounding of x itself. The total variation is at most the sum over k, plus the two tails that were left out, each
    below 2^-65.
    """
    scale = _LEVELS * sigma
    reach = int(10 * scale) + 2  # Phi(-10) 2^64 is below 1/2
    points = (np.arange(reach) + 0.5) / scale
    tails = ndtr(-points)
    lower = [round(float(tail) * 2.0**64) for tail in tails]  # T_{-1-j} for j = 0, 1, ...: P(N <= -1 - j)
    kept = [count for count in lower if count > 0]
    thresholds = np.array(kept[::-1] + [2**64 - count for count in kept], dtype=np.uint64)
    smallest = -len(kept)
    inexact = float(np.sum((1 + points**2) * tails))
    error = 2 * (len(kept) * 2.0**-65 + _TAIL_ERROR * inexact) + 2.0**-64

    dtype = np.int16 if reach + _LEVELS < 2**15 else np.int32
    starts = np.arange(2**16, dtype=np.uint64) << np.uint64(48)
    ends = starts | np.uint64(0xFFFFFFFFFFFF)
    at_start = np.searchsorted(thresholds, starts, side="right") + smallest
    at_end = np.searchsorted(thresholds, ends, side="right") + smallest
    ambiguous = int(np.iinfo(dtype).min)
    cells = np.where(at_start == at_end, at_start, ambiguous).astype(dtype)
    for array in (thresholds, cells):
        array.setflags(write=False)
    return _IntegerTable(thresholds, smallest, cells, ambiguous, error)
