"""Planning a sample size: how many samples come within a tolerance of the radius that n samples would give.

Only the number of samples depends on a plan: the pilot is discarded, and the bounds are as valid for a plan that proves
to be poor.
"""

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, ndtri

from .bounds import clopper_pearson_lower, clopper_pearson_upper
from .estimates import Smoothing, Votes, runner_up, shares

__all__ = ["QUANTILE", "needed", "planned_size"]

TYPICAL, SHARE = 310.0, 0.15
"""An image that needs min(TYPICAL / t, SHARE n) samples to lose t does lose t: chosen by simulations like those of
`benchmarks/speed/sample_economy.py`, so that the mean loss is about t for n from 1,000 to 100,000.

Where m samples lose a / sqrt(m), the same loss t for every image takes m = a^2 / t^2. The least cost of all images
together has m and the loss grow like a^(2/3): less is lost where a radius is cheap, and more where it is dear."""

QUANTILE = 0.7  # of the need, where members vote; the median leaves a mean loss that is too near the tolerance

PILOT_MISS = 0.01  # probability that the pilot's interval misses p_A; costs samples or tolerance, never soundness
_LEAST = 20  # the smallest sample size of a plan on average, if n is not smaller
_SIZES = 96  # about how many sizes there are to choose from


def planned_size(
    smoothing: Smoothing, pilot: Votes, top: int, n: int, alpha: float, tolerance: float, quantile: float | None = None
) -> int:
    """A sample size that comes near the radius of n samples, by the pilot; 0 if they prove none.

    Without `quantile` it is the m that minimises m + price E[radius of n - radius of m]: t is about the mean loss over
    images, a little more or less by sigma and bound, and no limit for one image. Where the loss is a / sqrt(m), it is t
    at the size `typical` if the price is 2 typical / t. With `quantile`, m comes within t with that probability.

    Expectation and probability are those of Jeffreys' posterior, of p_A and, for the two-class bound, of p_B as if
    1 - p_B were another p_A. The radii are those at the true rates; the luck of the draw comes on top.
    """
    if quantile is not None:
        return _sure_size(smoothing, pilot, top, n, alpha, tolerance, quantile)
    lower, upper = shares(smoothing, alpha, len(pilot))
    votes, samples = int(pilot[top]), int(pilot.sum())
    table_a = _score_table(n, lower)
    if upper is None:
        radii, reach = table_a.expected(votes, samples, least=0.0), table_a.reach(votes, samples)
    else:
        table_b, others = _score_table(n, upper), samples - int(pilot[runner_up(pilot, top)])
        radii = (table_a.expected(votes, samples) + table_b.expected(others, samples)) / 2
        reach = (table_a.reach(votes, samples) + table_b.reach(others, samples)) / 2
    if smoothing.sigma * reach <= smoothing.rounding:
        return 0
    typical = min(TYPICAL / tolerance, SHARE * n)
    price = 2 * typical / tolerance
    return int(table_a.sizes[np.argmin(table_a.sizes + price * smoothing.sigma * (radii[-1] - radii))])


def _sure_size(
    smoothing: Smoothing, pilot: Votes, top: int, n: int, alpha: float, tolerance: float, quantile: float
) -> int:
    """The size that comes within the tolerance with probability `quantile`; for the two-class bound as in `needed`."""
    lower, upper = shares(smoothing, alpha, len(pilot))
    table_a = _table(smoothing.sigma, n, lower, tolerance)
    votes, samples = int(pilot[top]), int(pilot.sum())
    if upper is None:
        return table_a.quantile(votes, samples, quantile, table_a.radii > smoothing.rounding)
    table_b = _table(smoothing.sigma, n, upper, tolerance)
    others = samples - int(pilot[runner_up(pilot, top)])
    expected_a, expected_b = (_expected_rate(count, samples) for count in (votes, others))
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
        probabilities = _posterior(self.rates, votes, samples)
        order = np.argsort(sizes, kind="stable")
        index = int(np.searchsorted(np.cumsum(probabilities[order]), quantile))
        return int(sizes[order[min(index, len(order) - 1)]])

    def reach(self, rate: float) -> float:
        """The radius of n samples at this rate."""
        return float(np.interp(rate, self.rates, self.radii))

    def provable(self, rounding: float) -> float:
        """The largest rate at which n samples prove no radius, after `rounding` was taken off."""
        return float(self.rates[self.radii <= rounding].max())


@dataclass(frozen=True)
class _ScoreTable:
    """Phi^-1 of the lower bound on p, in rows of a sample size, at columns of a rate that was observed."""

    rates: npt.NDArray[np.float64]
    sizes: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]

    def expected(self, votes: int, samples: int, least: float = -np.inf) -> npt.NDArray[np.float64]:
        """Its mean for each size over the posterior of a rate of which `votes` of `samples` were seen."""
        found: npt.NDArray[np.float64] = np.maximum(self.scores, least) @ _posterior(self.rates, votes, samples)
        return found

    def reach(self, votes: int, samples: int) -> float:
        """That of the largest size at the expected rate."""
        return float(np.interp(_expected_rate(votes, samples), self.rates, self.scores[-1]))


@functools.lru_cache(maxsize=16)
def _score_table(n: int, alpha: float) -> _ScoreTable:
    sizes = np.unique(np.geomspace(min(n, _LEAST), n, _SIZES).round().astype(np.int64))
    rates = _rates(n)
    bounds = clopper_pearson_lower(
        np.round(sizes[:, None] * rates), np.broadcast_to(sizes[:, None], (len(sizes), len(rates))), alpha
    )
    return _ScoreTable(rates, sizes, _scores(bounds))


def _scores(bounds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = ndtri(np.clip(bounds, 1e-300, 1 - 2.0**-53))
    return values


def _rates(n: int) -> npt.NDArray[np.float64]:
    """A grid that is fine where radii change fast: even in p up to 0.99, geometric in 1 - p beyond."""
    closest = min(0.5 / n, 0.005)  # to 1; for a small n, too, the second part lies beyond the first
    return np.concatenate([np.linspace(0.01, 0.99, 256), 1 - np.geomspace(0.01, closest, 128)[1:], [1.0]])


def _posterior(rates: npt.NDArray[np.float64], votes: int, samples: int) -> npt.NDArray[np.float64]:
    """Jeffreys' posterior of a rate of which `votes` of `samples` were seen, on a grid."""
    edges = np.concatenate([[0.0], (rates[1:] + rates[:-1]) / 2, [1.0]])
    probabilities: npt.NDArray[np.float64] = np.diff(betainc(votes + 0.5, samples - votes + 0.5, edges))
    return probabilities


def _expected_rate(votes: int, samples: int) -> float:
    return (votes + 0.5) / (samples + 1)


@functools.lru_cache(maxsize=32)
def _table(sigma: float, n: int, alpha: float, tolerance: float) -> _SizeTable:
    """Needs on the grid of rates."""
    rates = _rates(n)

    def radius(size: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return sigma * _scores(clopper_pearson_lower(np.round(size * rates), size, alpha))

    whole = radius(np.full(len(rates), n))
    low, high = np.ones(len(rates), dtype=np.int64), np.full(len(rates), n, dtype=np.int64)
    while (low < high).any():
        middle = (low + high) // 2
        enough = radius(middle) >= whole - tolerance
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    return _SizeTable(rates, high, whole)
