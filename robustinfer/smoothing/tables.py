"""Rounded Gaussians on two grids, as thresholds: 64-bit words become whole numbers of grid steps.

N = smallest + #{k: T_k <= word} for thresholds T_k in ascending order, so P(N <= k) = T_k / 2^64 exactly. Each table
knows how far this is from the exact rounded Gaussian, in total variation; every certificate pays for it.

The coarse grid is that of 8-bit images, 255 steps in the unit of pixels; the fine one is that of 16 bits, 65535 steps.
They differ in how a word is looked up: on the coarse grid the top 16 bits of a word nearly always settle its value; on
the fine grid they leave at most one threshold to compare with, nearly always.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from .domains import COARSE_LEVELS, FINE_LEVELS

__all__ = ["CoarseTable", "FineTable", "coarse_table", "fine_table"]

Words = npt.NDArray[np.uint64]

_TAIL_ERROR = 2.0**-50  # relative error of a computed tail Phi(-x), in units of 1 + x^2 (checked by the tests)
_MASS_ERROR = 2.0**-50  # the same of a computed mass P(N = k), at x = k / scale
_OPEN = int(np.iinfo(np.int32).min)


@dataclass(frozen=True)
class CoarseTable:
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


@dataclass(frozen=True)
class FineTable:
    """The rounded Gaussian P(N = k) = Phi((k + 1/2) / (65535 sigma)) - Phi((k - 1/2) / (65535 sigma))."""

    thresholds: Words  # T_k ascending, for k = smallest, smallest + 1, ...; one more entry of all ones at the end
    smallest: int
    places: npt.NDArray[np.int32]  # for a word's top bits: how many thresholds lie below; _OPEN if more than one within
    bits: int
    total_variation: float

    def look_up(self, drawn: Words) -> npt.NDArray[np.int32]:
        """N = smallest + #{k: T_k <= word}, as int32."""
        top = (drawn >> np.uint64(64 - self.bits)).view(np.int64)
        values: npt.NDArray[np.int32] = self.places.take(top, mode="clip")  # nothing to clip, as above
        found, flat = values.reshape(-1), drawn.reshape(-1)
        open_ones = np.flatnonzero(found == _OPEN)
        found[open_ones] = 0
        found += self.thresholds.take(found, mode="clip") <= flat
        found[open_ones] = np.searchsorted(self.thresholds[:-1], flat[open_ones], side="right")
        # A word of all ones passes the last entry, which is not a threshold.
        np.minimum(found, len(self.thresholds) - 1, out=found)
        found += np.int32(self.smallest)
        return values


@functools.lru_cache(maxsize=16)
def coarse_table(sigma: float) -> CoarseTable:
    """Thresholds, look-up table and error bound for one sigma on the 8-bit grid.

    The upper half is mirrored from the lower one, so that every threshold comes from a small tail, which doubles hold
    with full relative accuracy. Thresholds that round to 0 or 2^64 are left out: their values never occur.

    Error: |T_k / 2^64 - Phi(-x)| <= 2^-65 (rounding of T_k) + 2^-50 (1 + x^2) Phi(-x), where the x^2 stems from the
    rounding of x itself. The total variation is at most the sum over k, plus the two tails that were left out, each
    below 2^-65.
    """
    scale = COARSE_LEVELS * sigma
    reach = int(10 * scale) + 2  # Phi(-10) 2^64 is below 1/2
    points = (np.arange(reach) + 0.5) / scale
    tails = ndtr(-points)
    lower = [round(float(tail) * 2.0**64) for tail in tails]  # T_{-1-j} for j = 0, 1, ...: P(N <= -1 - j)
    kept = [count for count in lower if count > 0]
    thresholds = np.array(kept[::-1] + [2**64 - count for count in kept], dtype=np.uint64)
    smallest = -len(kept)
    inexact = float(np.sum((1 + points**2) * tails))
    error = 2 * (len(kept) * 2.0**-65 + _TAIL_ERROR * inexact) + 2.0**-64

    dtype = np.int16 if reach + COARSE_LEVELS < 2**15 else np.int32
    at_start, at_end = _thresholds_around(thresholds, 16)
    ambiguous = int(np.iinfo(dtype).min)
    cells = np.where(at_start == at_end, at_start + smallest, ambiguous).astype(dtype)
    for array in (thresholds, cells):
        array.setflags(write=False)
    return CoarseTable(thresholds, smallest, cells, ambiguous, error)


@functools.lru_cache(maxsize=4)
def fine_table(sigma: float) -> FineTable:
    """Thresholds, look-up table and error bound for one sigma on the 16-bit grid.

    Here the thresholds are sums of masses: tails would add the errors of 300,000 differences. With h = 1 / scale and
    x = k h, Taylor's series about the middle of the cell gives

        P(N = k) = h phi(x) (1 + h^2 He_2(x)/24 + h^4 He_4(x)/1920 + h^6 He_6(x)/322560 + ...),

    computed with a relative error of at most 2^-50 (1 + x^2), the remainder of the series included. T_k is the sum from
    the tail up to P(N = k), rounded to a multiple of 2^-64: the whole parts are added as integers and the fractions as
    doubles, so that nothing else is lost. Thresholds that round to 0 are left out, as their values never occur. The
    upper half is mirrored from the lower one, and N = 0 gets the rest.

    Error: the total variation is at most the sum of the errors of all masses but that of N = 0. Each is the difference
    of two rounded sums, so this is 2 sum_k (2^-64 + 2^-50 (1 + x^2) P(N = k)), and 2^-64 for the tails left out.
    """
    scale = FINE_LEVELS * sigma
    k = np.arange(1, int(9.5 * scale) + 2, dtype=np.float64)
    x2, h2 = (k / scale) ** 2, 1 / scale**2
    he_2, he_4, he_6 = x2 - 1, (x2 - 6) * x2 + 3, ((x2 - 15) * x2 + 45) * x2 - 15
    series = 1 + h2 * (he_2 / 24 + h2 * (he_4 / 1920 + h2 * he_6 / 322560))
    masses = np.exp(-x2 / 2) / (scale * np.sqrt(2 * np.pi)) * series
    fractions, wholes = np.modf(masses[::-1] * 2.0**64)
    lower = np.cumsum(wholes.astype(np.uint64)) + np.rint(np.cumsum(fractions)).astype(np.uint64)  # T_k up to k = -1
    lower = lower[lower > 0]
    kept = len(lower)
    thresholds = np.concatenate([lower, (np.uint64(0) - lower)[::-1], [np.uint64(2**64 - 1)]])
    inexact = float(np.sum((1 + x2) * masses))
    error = 1.001 * (2 * (kept * 2.0**-64 + _MASS_ERROR * inexact) + 2.0**-64)  # more than the rounding of these sums

    bits = min(max(int(16 * scale).bit_length(), 16), 20)
    at_start, at_end = _thresholds_around(thresholds[:-1], bits)
    places = np.where(at_end - at_start <= 1, at_start, _OPEN).astype(np.int32)
    for array in (thresholds, places):
        array.setflags(write=False)
    return FineTable(thresholds, -kept, places, bits, error)


def _thresholds_around(thresholds: Words, bits: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """For each pattern of the top bits: the number of thresholds up to its first word, and up to its last."""
    starts = np.arange(2**bits, dtype=np.uint64) << np.uint64(64 - bits)
    ends = starts | np.uint64(2 ** (64 - bits) - 1)
    return np.searchsorted(thresholds, starts, side="right"), np.searchsorted(thresholds, ends, side="right")
