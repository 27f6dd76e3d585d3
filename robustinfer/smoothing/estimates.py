"""Estimates: what votes prove about the top class, and how the error probability alpha is split over the bounds."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .bounds import clopper_pearson_lower, clopper_pearson_upper, radius_top_class, radius_two_class
from .kinds import Bound
from .looks import round_to_grid

__all__ = [
    "Bound",
    "Estimate",
    "Smoothing",
    "Votes",
    "estimate",
    "estimate_at_look",
    "estimate_same_sample",
    "optimistic_radius",
    "runner_up",
    "shares",
]

Votes = npt.NDArray[np.int64]

LOWER_SHARE = 0.9  # of alpha, for p_A in the two-class bound; the rest is spread over the other classes


@dataclass(frozen=True)
class Smoothing:
    """What turns probabilities into radii: sigma, the bound to use, and what computing with finite numbers costs.

    `slack` is the total variation distance of the noise (see `noise.total_variation`): every probability bound is
    moved by it to the safe side. `rounding` is what rounding images to the grid of the noise can cost (see
    `noise.rounding_cost`): it is taken off every radius.
    """

    sigma: float
    bound: Bound = "two-class"
    slack: float = 0.0
    rounding: float = 0.0


@dataclass(frozen=True)
class Estimate:
    """Bounds on the probabilities, and the radius they prove; not positive means none."""

    p_lower: float
    p_upper: float | None
    radius: float


def shares(smoothing: Smoothing, alpha: float, entries: int) -> tuple[float, float | None]:
    """How alpha is split, for a label chosen on other samples: the level for p_A, and that for each other class."""
    if smoothing.bound == "top-class":
        return alpha, None
    return LOWER_SHARE * alpha, (1 - LOWER_SHARE) * alpha / (entries - 1)


def estimate(smoothing: Smoothing, counts: Votes, top: int, alpha: float) -> Estimate:
    """Bounds for a label chosen on other samples, and the radius they prove.

    top-class: P(p_A < p_lower) <= alpha. two-class: P(p_A < p_lower or some p_c > p_upper) <= 0.9 alpha +
    (C - 1) 0.1 alpha / (C - 1) = alpha. With p_A >= p_lower > p_upper >= max p_c, Theorem 1 of Cohen et al. applies.
    """
    lower, upper = shares(smoothing, alpha, len(counts))
    return _with_radius(smoothing, counts, top, lower=lower, upper=upper)


def estimate_same_sample(smoothing: Smoothing, counts: Votes, top: int, alpha: float) -> Estimate:
    """Bounds for a label chosen on the same samples.

    two-class: all 2 C bounds hold together with probability 1 - alpha, so any choice among them is allowed.

    top-class, at alpha/2: a wrong certificate needs (i) the true top class A certified with p_lower > p_A, at most
    alpha/2; or (ii) another class c with n_c >= k*, the count from which p_lower > 1/2. If p_A > 1/2 the other classes
    share 1 - p_A < 1/2, and q -> P(Bin(n, q) >= k*) is convex on [0, 1/2] and 0 at 0, so the sum of P(n_c >= k*) is
    at most P(Bin(n, 1/2) >= k*) <= alpha/2. If no class has p_c > 1/2, the same convexity bounds the sum over all
    classes by twice alpha/2.
    """
    if smoothing.bound == "top-class":
        return _with_radius(smoothing, counts, top, lower=alpha / 2, upper=None)
    share = alpha / (2 * len(counts))
    return _with_radius(smoothing, counts, top, lower=share, upper=share)


def estimate_at_look(smoothing: Smoothing, counts: Votes, top: int, *, lower: float, upper: float | None) -> Estimate:
    """Bounds at these levels, rounded to the grid for which `look_level` gives them (see `looks.py`)."""
    return _with_radius(smoothing, counts, top, lower=lower, upper=upper, rounded=round_to_grid)


def _with_radius(
    smoothing: Smoothing,
    counts: Votes,
    top: int,
    *,
    lower: float,
    upper: float | None,
    rounded: Callable[[float], float] = float,
) -> Estimate:
    n = int(counts.sum())
    p_lower = max(0.0, rounded(clopper_pearson_lower(int(counts[top]), n, lower)) - smoothing.slack)
    if upper is None:
        return Estimate(p_lower, None, radius_top_class(p_lower, smoothing.sigma) - smoothing.rounding)
    largest = int(
        np.delete(counts, top).max()
    )  # the bound grows with the count: the largest count has the largest bound
    others = 1.0 - rounded(clopper_pearson_lower(n - largest, n, upper))  # the upper bound, mirrored
    p_upper = min(1.0 - p_lower, others + smoothing.slack)
    return Estimate(p_lower, p_upper, radius_two_class(p_lower, p_upper, smoothing.sigma) - smoothing.rounding)


def optimistic_radius(smoothing: Smoothing, counts: Votes, top: int, level: float) -> float:
    """A radius that the true probabilities exceed with probability at most 2 `level`: what more samples could prove."""
    n = int(counts.sum())
    p_high = clopper_pearson_upper(int(counts[top]), n, level)
    if smoothing.bound == "top-class":
        return radius_top_class(p_high, smoothing.sigma) - smoothing.rounding
    p_low = clopper_pearson_lower(int(counts[runner_up(counts, top)]), n, level)
    return radius_two_class(p_high, min(p_low, 1.0 - p_high), smoothing.sigma) - smoothing.rounding


def runner_up(counts: Votes, top: int) -> int:
    """The entry with the most votes besides `top`."""
    others = counts.copy()
    others[top] = -1
    return int(others.argmax())
