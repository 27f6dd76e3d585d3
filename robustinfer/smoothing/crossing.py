"""Crossing probabilities: how often bounds that are looked at again and again are ever wrong.

Nothing here runs when a certificate is made. `benchmarks/trust/look_levels.py` computes the table of `look_table.py`
with it, and tests compare it with enumeration, exact fractions and simulation.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import bdtr
from scipy.stats import binom

__all__ = ["ARITHMETIC", "crossing"]

ARITHMETIC = 1e-11  # more than what the arithmetic of `crossing` can be wrong by, at 100 looks of up to 100,000 samples
_LEVEL_MARGIN = 1e-6  # bounds are computed in floats: a level is taken this much larger, relatively
_TAIL = 1e-17  # of a step's distribution, on each side; what lies beyond counts as crossed, or as stepped up
_LOWEST = 5.0  # standard deviations below the mean: counts below are taken for this one, which crosses sooner

Numbers = npt.NDArray[np.float64]


def crossing(p: float, levels: Sequence[float], sizes: Sequence[int]) -> Numbers:
    """P_p(at this look or before, a one-sided Clopper-Pearson lower bound is at least p), one row per level.

    X_k is the number of successes among the first sizes[k] of independent samples with probability p. The lower bound
    at level a of x successes is at least p if and only if P_p(Bin(n, p) >= x) <= a: look k crosses from some count c_k
    on. A dynamic programme carries the distribution of X_k over the counts that have not crossed at any look so far;
    from look to look it is convolved with that of the new samples.

    What is returned is never too small, but for `ARITHMETIC`: crossing is monotone in every sample, so moving mass from
    low counts up to a higher one only adds to it, and mass that is cut off is counted as crossed.
    """
    rows = np.asarray(levels, dtype=np.float64) * (1 + _LEVEL_MARGIN)
    alive, lowest, before = np.ones((len(rows), 1)), 0, 0
    crossed, found = np.zeros(len(rows)), np.empty((len(rows), len(sizes)))
    for look, n in enumerate(sizes):
        first, step = _step(n - before, p)
        before, lowest = n, lowest + first
        width = alive.shape[1] + len(step) - 1
        length = next_fast_len(width, real=True)
        alive = np.maximum(irfft(rfft(alive, length) * rfft(step, length), length)[:, :width], 0.0)
        over = np.arange(lowest, lowest + width) >= _boundary(n, p, rows)[:, None]
        crossed = crossed + np.where(over, alive, 0.0).sum(axis=1) + 2 * _TAIL
        found[:, look] = crossed
        alive, lowest = _trimmed(np.where(over, 0.0, alive), lowest, n, p)
    return found


def _step(count: int, p: float) -> tuple[int, Numbers]:
    """The least number of successes among `count` new samples, and the probabilities from there on."""
    first, last = int(binom.ppf(_TAIL, count, p)), int(binom.isf(_TAIL, count, p))
    return first, np.asarray(binom.pmf(np.arange(first, last + 1), count, p))


def _boundary(n: int, p: float, levels: Numbers) -> npt.NDArray[np.int64]:
    """The least x with P(Bin(n, p) >= x) <= level, for each level; n + 1 if there is none."""
    guess = binom.isf(levels, n, p).astype(np.int64) + 1  # P(X > isf) <= level, up to the arithmetic of the quantile
    for _ in range(3):  # step down while the count below is enough as well: never above the true boundary
        below = np.maximum(guess - 1, 0)
        enough = bdtr(n - below, n, 1 - p) <= levels  # P(Bin(n, p) >= x) = P(Bin(n, 1 - p) <= n - x)
        guess = np.where(enough & (guess > 0), below, guess)
    return guess


def _trimmed(alive: Numbers, lowest: int, n: int, p: float) -> tuple[Numbers, int]:
    """Without the columns that hold nothing, and with the mass of very low counts moved up to one of them."""
    filled = np.flatnonzero(alive.any(axis=0))
    if not len(filled):
        return np.zeros((len(alive), 1)), lowest
    alive = alive[:, : filled[-1] + 1]
    cut = math.floor(n * p - _LOWEST * math.sqrt(n * p * (1 - p))) - 1 - lowest
    if 0 < cut < alive.shape[1]:
        moved = alive[:, :cut].sum(axis=1)
        alive, lowest = alive[:, cut:].copy(), lowest + cut
        alive[:, 0] += moved
    return alive, lowest
