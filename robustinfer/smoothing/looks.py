"""Looks: the sample sizes at which counts are looked at, and the level at which each look may be taken.

A bound that is looked at again and again must be right at all looks together. Dividing the error probability by the
number K of looks is enough, and wasteful, because neighbouring looks share most of their samples: bounds at level a at
51 looks are ever wrong with a probability of about 23 a, not 51 a. `look_level` takes the larger level that this
allows.

Statement. X_k is the number of successes among the first n_k of independent samples with any unknown probability p,
and L_k is the one-sided Clopper-Pearson lower bound of X_k at level a = look_level(share, ...), rounded down to a point
of `GRID`. Then P(L_k > p for some k) <= share. Mirrored (failures for successes), the same is true of upper bounds.

Proof. Let p_j be the least point of the grid above p. L_k > p means L_k >= p_j, as L_k is a point of the grid (or 0),
so that the Clopper-Pearson bound itself is at least p_j. That is so from some count c_k(p_j) on, and more successes can
only bring it about: the event "X_k >= c_k(p_j) for some k" is monotone in every sample. Its probability under p < p_j
is at most that under p_j, which is what `crossing.crossing` computes, look by look. The table of `look_table.py` has
the largest of these numbers over all points p_j of the grid, divided by a and rounded up: the most that a may be
multiplied by. (Above the last point of the grid L_k cannot be wrong.) It is computed for the `tight_looks` below some
sizes; whatever looks there are besides (the last one at n, early ones under a deadline, those beyond 100,000 samples)
add a each, by the union bound. Where K a is less, it is taken instead.

Stopping for other reasons (the radius is proven, or out of reach; a clock, a person) means not taking later looks,
which cannot add to the event.
"""

import functools
import math

import numpy as np
import numpy.typing as npt

from .look_table import COLUMNS, MULTIPLES

__all__ = ["GRID", "GROWTH", "geometric_looks", "look_level", "look_sizes", "round_to_grid", "tight_looks"]

GROWTH = 1.15  # from look to look; the table of `look_table.py` is for these looks
FIRST_TIGHT, LAST_TIGHT = 100, 100_000
EARLY_GROWTH, LATE_GROWTH = 1.5, 1.3  # below and beyond, where every look costs the whole of its level
_POINTS = 4000
_LOWEST_POINT = 0.05


def _grid() -> npt.NDArray[np.float64]:
    """t^2 / (t^2 + (1 - t)^2) for even t: about even in standard deviations of a share, by basic arithmetic alone.

    Sums, products and quotients are the same on every machine, so a bound is rounded to the same number everywhere.
    """
    t = np.arange(1, _POINTS) / _POINTS
    points = t * t / (t * t + (1 - t) * (1 - t))
    return np.asarray(points[points >= _LOWEST_POINT])


GRID = _grid()
"""The probabilities that a lower bound at a look can be."""


def round_to_grid(p_lower: float) -> float:
    """The largest point of the grid that is not above a bound, or 0."""
    index = int(np.searchsorted(GRID, p_lower, side="right"))
    return float(GRID[index - 1]) if index else 0.0


def tight_looks(below: int = LAST_TIGHT) -> tuple[int, ...]:
    """The looks whose probabilities are tabulated: 100, 115, 133, ..., below a size."""
    return tuple(_growing(FIRST_TIGHT, min(below, LAST_TIGHT), GROWTH))


@functools.lru_cache(maxsize=64)
def look_sizes(n: int, start: int) -> tuple[int, ...]:
    """Sample sizes at which the counts are looked at: from start, growing geometrically, and n at last."""
    early = _growing(start, min(n, FIRST_TIGHT), EARLY_GROWTH)
    tight = [size for size in tight_looks(n) if size >= start]
    late = _growing(max(start, LAST_TIGHT), n, LATE_GROWTH)
    return (*early, *tight, *late, n)


@functools.lru_cache(maxsize=256)
def look_level(share: float, n: int, start: int) -> float:
    """The level of the bounds at each of the looks of `look_sizes(n, start)`, so that all hold but for `share`.

    The largest level of the table that is allowed, and at least share / K. The proof is at the top of this file.
    """
    sizes = look_sizes(n, start)
    tight = [size for size in sizes[:-1] if FIRST_TIGHT <= size < LAST_TIGHT]
    found = share / len(sizes)
    if tight:
        column = next(index for index, size in enumerate(COLUMNS) if tight[-1] < size)
        others = len(sizes) - len(tight)
        allowed = [level for level, multiples in MULTIPLES.items() if level * (multiples[column] + others) <= share]
        found = max([found, *allowed])
    return found


@functools.lru_cache(maxsize=64)
def geometric_looks(n: int, start: int, growth: float = 1.3) -> tuple[int, ...]:
    """Sample sizes of looks that share alpha equally: start, growing geometrically, and n at last."""
    sizes = [min(start, n)]
    while sizes[-1] < n:
        sizes.append(min(n, math.ceil(growth * sizes[-1])))
    return tuple(sizes)


def _growing(first: int, below: int, growth: float) -> list[int]:
    sizes = []
    while first < below:
        sizes.append(first)
        first = math.ceil(growth * first)
    return sizes
