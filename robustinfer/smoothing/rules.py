"""Rules: at which sample sizes a procedure looks, what a look proves, and when it gives up.

Certificates name the edition of the rules by which they were made, and are replayed by the same one:

| edition | looks grow by | level of each look | gives up when |
|---|---|---|---|
| 1 | 1.3 | alpha / K | the radius is above what the true probabilities allow, at level 0.0001 |
| 2 | 1.15 | `look_level(alpha)`, bounds rounded to its grid | n samples would not prove it, at level 0.01 |

Giving up is a matter of power, never of soundness: what was not proven by then is not claimed.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from .bounds import clopper_pearson_upper
from .estimates import Estimate, Smoothing, Votes, estimate, estimate_at_look, optimistic_radius, runner_up, shares
from .looks import geometric_looks, look_level, look_sizes

__all__ = ["EDITIONS", "FUTILITY", "FUTILITY_1", "RULES", "LookRule", "rule_of"]

EDITIONS = (1, 2)
RULES = EDITIONS[-1]
FUTILITY = 1e-2  # probability of giving up a radius that n samples would have proven
FUTILITY_1 = 1e-4  # edition 1: of giving up a radius that was in reach


@dataclass(frozen=True)
class LookRule(ABC):
    """When to look, what a look proves, and what is to be hoped for; for one of `parts` members that share alpha."""

    smoothing: Smoothing
    n: int
    start: int
    alpha: float  # this part's share
    parts: int

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """The sample sizes of the looks; the last is n."""

    @abstractmethod
    def prove(self, counts: Votes, top: int) -> Estimate:
        """What the counts of a look prove: right at all looks together, but for alpha."""

    @abstractmethod
    def hope(self, counts: Votes, top: int) -> float:
        """A radius that further samples will hardly prove more than."""


def rule_of(edition: int, smoothing: Smoothing, *, n: int, start: int, alpha: float, parts: int = 1) -> LookRule:
    """The rule of an edition, for one of so many `parts` (members) that share alpha equally."""
    kinds: dict[int, type[LookRule]] = {1: _EqualLooks, 2: _TightLooks}
    return kinds[edition](smoothing, n, start, alpha / parts, parts)


class _EqualLooks(LookRule):
    @property
    def sizes(self) -> tuple[int, ...]:
        return geometric_looks(self.n, self.start)

    def prove(self, counts: Votes, top: int) -> Estimate:
        """The union bound: alpha / K at each of the K looks."""
        return estimate(self.smoothing, counts, top, self.alpha / len(self.sizes))

    def hope(self, counts: Votes, top: int) -> float:
        return optimistic_radius(self.smoothing, counts, top, FUTILITY_1 / (self.parts * len(self.sizes)))


class _TightLooks(LookRule):
    @property
    def sizes(self) -> tuple[int, ...]:
        return look_sizes(self.n, self.start)

    def prove(self, counts: Votes, top: int) -> Estimate:
        """All bounds at all looks hold together, but for alpha.

        top-class: the lower bounds on p_A have alpha. two-class: they have 0.9 alpha, and the upper bounds on each of
        the C - 1 other probabilities have 0.1 alpha / (C - 1). Each of these sequences of bounds keeps to its share for
        every value of its probability (`looks.py`), and the shares add up to alpha.
        """
        lower, upper = shares(self.smoothing, self.alpha, len(counts))
        level = look_level(lower, self.n, self.start)
        others = None if upper is None else look_level(upper, self.n, self.start)
        return estimate_at_look(self.smoothing, counts, top, lower=level, upper=others)

    def hope(self, counts: Votes, top: int) -> float:
        """What n samples would prove at rates as good as these counts allow, at level `FUTILITY` over all looks."""
        level = look_level(FUTILITY / self.parts, self.n, self.start)
        seen, other = int(counts.sum()), runner_up(counts, top)
        if self.smoothing.bound == "top-class":
            whole = np.zeros_like(counts)
            whole[top] = math.ceil(self.n * clopper_pearson_upper(int(counts[top]), seen, level))
            whole[other] = self.n - whole[top]
            return self.prove(whole, top).radius
        # The radius is half the difference of two quantiles; its deviation by the delta method, off 0 and 1.
        p_a, p_b = ((int(counts[index]) + 0.5) / (seen + 1.5) for index in (top, other))
        slope_a, slope_b = (math.sqrt(2 * math.pi) * math.exp(float(ndtri(p)) ** 2 / 2) for p in (p_a, p_b))
        spread = slope_a**2 * p_a * (1 - p_a) + slope_b**2 * p_b * (1 - p_b) + 2 * slope_a * slope_b * p_a * p_b
        deviation = self.smoothing.sigma / 2 * math.sqrt(spread / seen)
        return self._of_all(p_a, p_b, len(counts)) - float(ndtri(level)) * deviation

    def _of_all(self, p_a: float, p_b: float, entries: int) -> float:
        """The two-class radius of n samples whose shares are p_a and, at most, p_b."""
        whole = np.zeros(entries, dtype=np.int64)
        whole[1] = round(self.n * p_b)
        left = max(0, self.n - round(self.n * p_a) - int(whole[1]))
        for index in range(2, entries):
            whole[index] = min(left, int(whole[1]))
            left -= int(whole[index])
        whole[0] = self.n - int(whole.sum())
        return self.prove(whole, 0).radius
