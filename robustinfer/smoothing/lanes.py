"""Noise from lanes: four 16-bit pieces of a word decide four pixels of the 8-bit grid.

An image of d values has L = ceil(d/4) words for its lanes and R words in reserve. Sample i takes the words
[W i, W i + W) of the stream (`noise.py`), with W = L + R rounded up to a multiple of four. Value v has lane v: 16 bits
of word v // 4, low bits first. The table of cells settles nearly every value by these. The k-th value of a sample that
is left open, counted from 0 in the order channel, row, column, takes 48 bits more: the high bits of reserve word
k mod R, which is word L + (k mod R) of the sample.

Why this is the same noise: lanes and reserve words are independent and uniform, so as long as no reserve word is used
twice, every value has a 64-bit word of its own, and N has the distribution of the table. The number X of open values is
binomial with d trials and the exact chance q = (open cells) / 2^16. By Bernstein's inequality, with mu = d q,

    P(X > R) <= P(X - mu >= t) <= exp(-t^2 / (2 (mu + t/3))) = 2^-40   for t = c/6 + sqrt((c/6)^2 + c mu), c = 80 ln 2,

and R is at least mu + t, or it is d. Two distributions that agree except on an event are no further apart than its
probability, so a sample pays 2^-40 of total variation beside what the table costs.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .tables import coarse_table

__all__ = ["LANE_BITS", "OVERFLOW", "LaneLayout", "lane_cells", "lane_layout", "look_up_lanes", "settle_open"]

Words = npt.NDArray[np.uint64]

LANE_BITS = 16
OVERFLOW = 2.0**-40
"""What the reserve of a sample may cost in total variation: the chance that it does not suffice."""

_C = 80 * math.log(2)  # 2 ln(1 / OVERFLOW)


@dataclass(frozen=True)
class LaneLayout:
    """Where the bits of a sample lie: `lanes` words of four lanes, `reserve` words, in all `words`."""

    size: int
    lanes: int
    reserve: int

    @property
    def words(self) -> int:
        """Words per sample, a multiple of four."""
        return 4 * -(-(self.lanes + self.reserve) // 4)

    @property
    def total_variation(self) -> float:
        """What the reserve costs: nothing if it cannot run out."""
        return 0.0 if self.reserve == self.size else OVERFLOW


@functools.lru_cache(maxsize=64)
def lane_layout(sigma: float, size: int) -> LaneLayout:
    """The layout for an image of `size` values."""
    mean = size * int(np.isinf(lane_cells(sigma)).sum()) / 2**LANE_BITS
    most = math.ceil(mean + _C / 6 + math.sqrt((_C / 6) ** 2 + _C * mean))
    return LaneLayout(size, -(-size // 4), min(size, most))


@functools.lru_cache(maxsize=16)
def lane_cells(sigma: float) -> npt.NDArray[np.float32]:
    """N for each lane, as exact floats; infinite where 16 bits leave it open."""
    table = coarse_table(sigma)
    cells = np.where(table.cells == table.ambiguous, np.inf, table.cells).astype(np.float32)
    cells.setflags(write=False)
    return cells


def look_up_lanes(drawn: Words, sigma: float, layout: LaneLayout, out: npt.NDArray[np.float32]) -> None:
    """Turn the words of samples, of shape (count, words), into noise in whole grid steps, of shape (count, size); what
    the lanes leave open is infinite."""
    # Nothing to clip: it only spares the check of the bounds.
    np.take(lane_cells(sigma), _lanes(drawn, layout), out=out, mode="clip")


def settle_open(drawn: Words, sigma: float, layout: LaneLayout, places: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """The noise of the open values, of which all `places` among those of the samples are given, in their order."""
    size = layout.size
    rows = places // size
    starts = np.searchsorted(places, size * np.arange(len(drawn)))  # the first open value of each sample
    ranks = np.arange(len(places)) - starts[rows]
    more = drawn[rows, layout.lanes + ranks % layout.reserve] >> np.uint64(LANE_BITS)
    return _OpenCells.of(sigma).settle(_lanes(drawn, layout)[rows, places - size * rows], more)


def _lanes(drawn: Words, layout: LaneLayout) -> npt.NDArray[np.uint16]:
    """The lanes of samples, of shape (count, size)."""
    return drawn[:, : layout.lanes].astype("<u8", copy=False).view("<u2")[:, : layout.size]


@dataclass(frozen=True)
class _OpenCells:
    """How 48 bits more settle a value. Nearly every open cell holds one threshold: a comparison instead of a search."""

    thresholds: npt.NDArray[np.uint64]
    smallest: int
    below: npt.NDArray[np.intp]  # for each lane: how many thresholds lie below its cell
    crowded: npt.NDArray[np.bool_]  # whether the cell holds several

    @staticmethod
    @functools.lru_cache(maxsize=16)
    def of(sigma: float) -> "_OpenCells":
        """The open cells of one sigma."""
        table = coarse_table(sigma)
        cells = table.thresholds >> np.uint64(64 - LANE_BITS)
        held = np.bincount(cells.astype(np.intp), minlength=2**LANE_BITS)
        # A threshold at the very start of a cell counts as within: the comparison finds it passed.
        return _OpenCells(table.thresholds, table.smallest, np.cumsum(held) - held, held > 1)

    def settle(self, lanes: npt.NDArray[np.uint16], more: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
        """N = smallest + #{k: T_k <= word} of the words that consist of an open lane and 48 bits more."""
        words = lanes.astype(np.uint64) << np.uint64(64 - LANE_BITS) | more
        found: npt.NDArray[np.intp] = self.below[lanes]
        found += self.thresholds[found] <= words
        crowded = np.flatnonzero(self.crowded[lanes])
        if len(crowded):
            found[crowded] = np.searchsorted(self.thresholds, words[crowded], side="right")
        found += self.smallest
        return found
