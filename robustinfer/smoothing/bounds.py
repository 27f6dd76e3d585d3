"""Confidence bounds and radii: the arithmetic of a certificate.

Notation of Cohen, Rosenfeld and Kolter (2019): f is the base classifier, g the smoothed one, p_A the probability of the
top class under noise, p_B an upper bound on the probability of every other class.
"""

import math
from decimal import ROUND_FLOOR, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betaincinv, ndtri

__all__ = [
    "binomial_p_value",
    "clopper_pearson_interval",
    "clopper_pearson_lower",
    "clopper_pearson_upper",
    "format_radius",
    "radius_linf",
    "radius_top_class",
    "radius_two_class",
    "round_radius_down",
    "smallest_n",
]

Numbers = npt.NDArray[np.float64]

_DIGITS = 1e6  # radii are handed out in steps of 1e-6, rounded down
_ROUNDOFF = 1e-12  # taken off every probability before it becomes a radius: more than betaincinv's own error


def clopper_pearson_lower(k: npt.ArrayLike, n: npt.ArrayLike, alpha: float) -> Any:
    """One-sided lower bound: for X ~ Bin(n, p), P(clopper_pearson_lower(X, n, alpha) > p) <= alpha, for every p.

    Closed forms at the ends: 0 for k = 0, alpha^(1/n) for k = n. Works on arrays.
    """
    k, n = np.asarray(k, dtype=np.float64), np.asarray(n, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        inner = betaincinv(np.maximum(k, 1), n - k + 1, alpha)
        bound = np.where(k <= 0, 0.0, np.where(k >= n, alpha ** (1 / n), inner))
    return bound if bound.ndim else float(bound)


def clopper_pearson_upper(k: npt.ArrayLike, n: npt.ArrayLike, alpha: float) -> Any:
    """One-sided upper bound: for X ~ Bin(n, p), P(clopper_pearson_upper(X, n, alpha) < p) <= alpha, for every p."""
    k, n = np.asarray(k, dtype=np.float64), np.asarray(n, dtype=np.float64)
    lower = clopper_pearson_lower(n - k, n, alpha)
    return 1.0 - lower


def clopper_pearson_interval(k: npt.ArrayLike, n: npt.ArrayLike, confidence: float) -> tuple[Any, Any]:
    """Two-sided interval: for X ~ Bin(n, p), it misses p with probability at most 1 - confidence, for every p."""
    alpha = (1.0 - confidence) / 2
    return clopper_pearson_lower(k, n, alpha), clopper_pearson_upper(k, n, alpha)


def binomial_p_value(k: int, n: int) -> float:
    """Two-sided p-value of k successes in n fair coin tosses, for k >= n/2: 2 P(Bin(n, 1/2) >= k), at most 1.

    PREDICT of Cohen et al. compares the top two counts with it. Choosing the two on the same samples does not cost
    anything (Hung and Fithian, 2019): P(returned class is not the top class) <= alpha when it is asked for p <= alpha.
    """
    if n == 0 or 2 * k <= n:
        return 1.0
    return min(1.0, 2.0 * float(betainc(k, n - k + 1, 0.5)))


def radius_top_class(p_lower: float, sigma: float) -> float:
    """sigma Phi^-1(p_A): Theorem 1 of Cohen et al. with p_B = 1 - p_A. Not positive means: abstain."""
    return sigma * float(ndtri(_inside(p_lower - _ROUNDOFF)))


def radius_two_class(p_lower: float, p_upper: float, sigma: float) -> float:
    """sigma/2 (Phi^-1(p_A) - Phi^-1(p_B)): the paper's radius for l2 robustness. Not positive means: abstain."""
    upper = min(p_upper + _ROUNDOFF, 1.0 - (p_lower - _ROUNDOFF))
    return sigma / 2 * float(ndtri(_inside(p_lower - _ROUNDOFF)) - ndtri(_inside(upper)))


def round_radius_down(radius: float) -> float:
    """The radius as it is handed out: finite, a multiple of 1e-6, never above the proven one."""
    if not math.isfinite(radius) or radius <= 0:
        return 0.0
    rounded = math.floor(radius * _DIGITS) / _DIGITS
    # The division may round up by one unit in the last place.
    return rounded if rounded <= radius else math.nextafter(rounded, 0.0)


def format_radius(radius: float, digits: int = 3) -> str:
    """A certified radius, or an average of them, for people to read: with `digits` decimals, never rounded up.

    The number is taken as it would be written, so that 0.29 is shown as 0.290, although its float lies below.
    """
    return str(Decimal(repr(float(radius))).quantize(Decimal(1).scaleb(-digits), ROUND_FLOOR))


def radius_linf(radius: float, size: int) -> float:
    """What an l2 radius proves in l_inf norm, for an image of `size` values: radius / sqrt(size), rounded down.

    |z|_2 <= sqrt(size) |z|_inf, so |z|_inf below this is |z|_2 below the radius. The root is taken in whole numbers: a
    quotient of floats may lie above the true one.
    """
    limit = Fraction(radius) ** 2 / size
    steps = math.isqrt(math.floor(limit * int(_DIGITS) ** 2))
    # A decimal is a float a little above or below it: of the floats next to the quotient, the largest that is proven.
    candidates = ((steps + 1) / _DIGITS, steps / _DIGITS, math.nextafter(steps / _DIGITS, 0.0))
    return next(candidate for candidate in candidates if Fraction(candidate) ** 2 <= limit)


def smallest_n(alpha: float) -> int:
    """The smallest n that can certify anything, when all samples agree: alpha^(1/n) > 1/2."""
    return math.floor(math.log(alpha) / math.log(0.5)) + 1


def _inside(p: float) -> float:
    """Clip to the open unit interval, so that no quantile is infinite. Lowers the radius, if it changes anything."""
    return min(max(p, 2.0**-1022), 1.0 - 2.0**-53)
