"""The yardstick of a decision: how many samples the best test would take on average, by Wald's approximation.

Whoever concludes, wrongly with probability at most alpha, that the radius is at least r, needs on average about
ln(1/alpha) / KL samples for an image of probabilities p, where KL is the information per sample that tells p from the
nearest probabilities of radius r. Where n samples do not suffice for that, the decision is to give up: about
ln(1/futility) / KL, with the information that tells p from the nearest probabilities for which they would. Nobody takes
more than n.

It is an estimate, and no bound. Terms that do not grow with ln(1/alpha) are left out, n samples count as what a test
takes that could stop earlier at little cost in power, and for two classes the information is approximate: 0.81 to 1.10
of what was used is what simulations found (`benchmarks/speed/sample_economy.py`).
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri, xlogy

__all__ = ["least_samples", "least_samples_of_votes"]

Numbers = npt.NDArray[np.float64]
_DRAWS = 64


def least_samples(
    p_a: npt.ArrayLike,
    p_b: npt.ArrayLike | None,
    *,
    sigma: float,
    radius: float,
    n: int,
    alpha: float,
    futility: float,
) -> Any:
    """About the mean number of samples of the best test of `radius`, for images of these top two probabilities.

    With `p_b` the two-class radius is decided; the information is then that of the normal approximation, or that of
    p_A alone if it says more.
    """
    p_a = _inside(np.asarray(p_a, dtype=np.float64))
    lowest = float(ndtr(radius / sigma))
    certify = np.where(p_a > lowest, _information(p_a, lowest), 0.0)
    # The least p_A of which n samples prove the radius: n KL(p, p_0) = ln(1/alpha), by bisection.
    low, high = lowest, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if n * _information(middle, lowest) < math.log(1 / alpha) else (low, middle)
    give_up = np.where(p_a < high, _information(p_a, min(high, 1 - 1e-16)), 0.0)
    if p_b is not None:
        p_b = _inside(np.asarray(p_b, dtype=np.float64))
        slope_a, slope_b = (math.sqrt(2 * math.pi) * np.exp(ndtri(p) ** 2 / 2) for p in (p_a, p_b))
        spread = slope_a**2 * p_a * (1 - p_a) + slope_b**2 * p_b * (1 - p_b) + 2 * slope_a * slope_b * p_a * p_b
        ahead = sigma / 2 * (ndtri(p_a) - ndtri(p_b)) - radius
        variance = sigma**2 / 4 * spread
        gap = np.sqrt(2 * variance * math.log(1 / alpha) / n)  # between the radius and the least that n samples prove
        certify = np.maximum(certify, np.where(ahead > 0, ahead**2 / (2 * variance), 0.0))
        give_up = np.where(ahead < gap, (gap - ahead) ** 2 / (2 * variance), 0.0)
    with np.errstate(divide="ignore"):
        to_certify, to_give_up = math.log(1 / alpha) / certify, math.log(1 / futility) / give_up
    return np.minimum(n, np.where(to_certify <= n, to_certify, to_give_up))


def least_samples_of_votes(
    top: int, runner_up: int | None, samples: int, *, sigma: float, radius: float, n: int, alpha: float, futility: float
) -> float:
    """`least_samples`, on average over the probabilities that these votes of `samples` leave open.

    The posterior (Jeffreys' prior) does not depend on when the sampling stopped, which the votes' own rates do.
    """
    generator = np.random.default_rng(0)
    second = runner_up or 0
    drawn = generator.dirichlet([top + 0.5, second + 0.5, samples - top - second + 0.5], _DRAWS)
    p_b = None if runner_up is None else drawn[:, 1]
    found = least_samples(drawn[:, 0], p_b, sigma=sigma, radius=radius, n=n, alpha=alpha, futility=futility)
    return float(np.mean(found))


def _information(p: Any, other: float) -> Any:
    """KL of Bernoulli(p) from Bernoulli(other), in nats per sample."""
    return xlogy(p, p / other) + xlogy(1 - p, (1 - p) / (1 - other))


def _inside(p: Numbers) -> Numbers:
    return np.clip(p, 1e-9, 1 - 1e-9)
