"""Planning a sample size: how many samples come within a tolerance of the radius that n samples would give."""

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, ndtri

from .bounds import clopper_pearson_lower, clopper_pearson_upper
from .estimates import Smoothing, Votes, runner_up, shares

__all__ = ["QUANTILE", "needed", "planned_size"]

QUANTILE = 0.7  # of the need; the median leaves a mean loss that is too near the tolerance, or beyond it

PILOT_MISS = 0.01  # probability that the pilot's interval misses p_A; costs samples or tolerance, never soundness


def planned_size(
    smoothing: Smoothing, pilot: Votes, top: int, n: int, alpha: float, tolerance: float, quantile: float
) -> int:
    """The sample size that comes within `tolerance` of n samples with probability `quantile`, by the pilot; 0 if none.

    The probabilities are those of Jeffreys' posterior. The tolerance is the loss at the rates that are expected; the
    luck of the draw comes on top of it, either way. So t is about the mean loss: it is kept on average over images, not
    on each. Only the number of samples depends on any of this: the pilot is discarded, and the bounds are as valid for
    a plan that proves to be poor. For the two-class bound p_B is planned for as in `needed`.
    """
    lower, upper = shares(smoothing, alpha, len(pilot))
    table_a = _table(smoothing.sigma, n, lower, tolerance)
    votes, samples = int(pilot[top]), int(pilot.sum())
    if upper is None:
        return table_a.quantile(votes, samples, quantile, table_a.radii > smoothing.rounding)
    table_b = _table(smoothing.sigma, n, upper, tolerance)
    others = samples - int(pilot[runner_up(pilot, top)])
    expected_a, expected_b = ((count + 0.5) / (samples + 1) for count in (votes, others))
    if table_a.reach(expected_a) + table_b.reach(expected_b) <= 2 * smoothing.rounding:
        return 0
    return max(table_a.quantile(votes, samples, quantile), table_b.quantile(others, samples, quantile))


def needed(smoothing: Smoothing, pilot: Votes, top: int, n: int, alpha: float, tolerance: float) -> int:
    """The sample size that comes within `tolerance` of n samples, for every p_A the pilot leaves open; 0 if none can.

    The plan of older certificates, which are replayed by it.

    The tolerance is met by the radius at the rates that are expected; the luck of the draw comes on top of it.
    For the two-class bound the runner-up's p_B is planned for as well, as if 1 - p_B were p_A: the radius is the mean
    of the two parts, so it is within the tolerance if both are.
    """
    lower, upper = shares(smoothing, alpha, len(pilot))
    table_a = _table(smoothing.sigma, n, lower, tolerance)
    a_low, a_high = _interval(pilot, top)
    if upper is None:
        # Below the rate from which n samples prove a radius, there is nothing to come close to.
        provable = table_a.provable(smoothing.rounding)
        return table_a.largest(max(a_low, provable), a_high) if a_high > provable else 0
    table_b = _table(smoothing.sigma, n, upper, tolerance)
    b_low, b_high = _interval(pilot, runner_up(pilot, top))
    if table_a.reach(a_high) + table_b.reach(1.0 - b_low) <= 2 * smoothing.rounding:
        return 0
    return max(table_a.largest(a_low, a_high), table_b.largest(1.0 - b_high, 1.0 - b_low))


def _interval(pilot: Votes, index: int) -> tuple[float, float]:
    """Where the pilot leaves the probability of a class, but for `PILOT_MISS`."""
    k, n = int(pilot[index]), int(pilot.sum())
    return clopper_pearson_lower(k, n, PILOT_MISS / 2), clopper_pearson_upper(k, n, PILOT_MISS / 2)


@dataclass(frozen=True)
class _SizeTable:
    """need(p): the smallest size whose radius at an observed rate p is within tolerance of that of n samples."""

    rates: npt.NDArray[np.float64]
    sizes: npt.NDArray[np.int64]
    radii: npt.NDArray[np.float64]  # sigma Phi^-1(p_lower) of n samples at these rates; negative below 1/2

    def largest(self, low: float, high: float) -> int:
        """The largest need over an interval of rates."""
        first = max(int(np.searchsorted(self.rates, low, side="right")) - 1, 0)
        last = min(int(np.searchsorted(self.rates, high, side="left")), len(self.rates) - 1)
        return int(self.sizes[first : last + 1].max())

    def quantile(
        self, votes: int, samples: int, quantile: float, worthwhile: npt.NDArray[np.bool_] | None = None
    ) -> int:
        """A quantile of the need, for a rate of which `votes` of `samples` were seen; 0 where it is not worthwhile."""
        sizes = self.sizes if worthwhile is None else np.where(worthwhile, self.sizes, 0)
        edges = np.concatenate([[0.0], (self.rates[1:] + self.rates[:-1]) / 2, [1.0]])
        probabilities = np.diff(betainc(votes + 0.5, samples - votes + 0.5, edges))
        order = np.argsort(sizes, kind="stable")
        index = int(np.searchsorted(np.cumsum(probabilities[order]), quantile))
        return int(sizes[order[min(index, len(order) - 1)]])

    def reach(self, rate: float) -> float:
        """The radius of n samples at this rate."""
        return float(np.interp(rate, self.rates, self.radii))

    def provable(self, rounding: float) -> float:
        """The largest rate at which n samples prove no radius, after `rounding` was taken off."""
        return float(self.rates[self.radii <= rounding].max())


@functools.lru_cache(maxsize=32)
def _table(sigma: float, n: int, alpha: float, tolerance: float) -> _SizeTable:
    """Needs on a grid that is fine where radii change fast: even in p up to 0.99, geometric in 1 - p beyond."""
    closest = min(0.5 / n, 0.005)  # to 1; for a small n, too, the second part lies beyond the first
    rates = np.concatenate([np.linspace(0.01, 0.99, 256), 1 - np.geomspace(0.01, closest, 128)[1:], [1.0]])

    def radius(size: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        p = clopper_pearson_lower(np.round(size * rates), size, alpha)
        values: npt.NDArray[np.float64] = sigma * ndtri(np.clip(p, 1e-300, 1 - 2.0**-53))
        return values

    whole = radius(np.full(len(rates), n))
    low, high = np.ones(len(rates), dtype=np.int64), np.full(len(rates), n, dtype=np.int64)
    while (low < high).any():
        middle = (low + high) // 2
        enough = radius(middle) >= whole - tolerance
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    return _SizeTable(rates, high, whole)
