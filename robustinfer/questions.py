"""A question: a request in which everything is settled, and the statistical procedure that answers it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .certificate import METHOD, VOTES_METHOD, ProcedureName, SeedOrigin
from .errors import SampleSizeError
from .settings import MAX_N, Mode
from .smoothing.bounds import round_radius_down, smallest_n
from .smoothing.domains import NoiseName
from .smoothing.estimates import Smoothing, estimate, estimate_same_sample
from .smoothing.member_procedures import decide_by_members, fixed_by_members, planned_by_members, vote_by_members
from .smoothing.noise import begin_noise
from .smoothing.procedures import (
    ANYTIME_START,
    DECIDE_START,
    Procedure,
    anytime,
    decide,
    fixed,
    planned,
    prediction_looks,
    vote,
)
from .smoothing.rules import RULES, rule_of
from .smoothing.tally import Tally

__all__ = ["Question"]


@dataclass(frozen=True)
class Question:
    """A request in which everything is settled: what a job needs, and what a certificate records."""

    image: npt.NDArray[Any]
    noise: NoiseName
    mode: Mode
    procedure: ProcedureName
    smoothing: Smoothing
    alpha: float
    n: int
    n0: int
    requested: float | None
    deadline: float | None
    seed: int
    seed_origin: SeedOrigin
    tally: Tally
    quantile: float | None = None
    rules: int = RULES

    @property
    def method(self) -> str:
        """How the radius is proven, as a certificate names it."""
        return VOTES_METHOD if self.tally.members else METHOD

    def draw(self, first: int, out: npt.NDArray[np.float32]) -> None:
        """Fill `out` with the noisy images of samples first, first + 1, ...: the same ones for the same seed."""
        self.begin_draw(first, out)()

    def begin_draw(self, first: int, out: npt.NDArray[np.float32]) -> Callable[[], None]:
        """As `draw`, in two parts: `out` is filled when what is returned has been called, too (`begin_noise`)."""
        how: dict[str, Any] = {"noise": self.noise, "sigma": self.smoothing.sigma, "seed": self.seed}
        return begin_noise(self.image, **how, first=first, out=out)

    def begin(self) -> Procedure:
        """The statistical procedure that answers this question, from its start."""
        if self.tally.members:
            return self._begin_with_members()
        classes = self.tally.classes
        if self.mode == "predict":
            return vote(classes=classes, n=self.n, alpha=self.alpha, slack=self.smoothing.slack)
        smoothing, sizes = self.smoothing, {"classes": classes, "n0": self.n0, "n": self.n}
        if self.procedure == "radius":
            return decide(smoothing, **sizes, alpha=self.alpha, radius=self.requested or 0.0, rules=self.rules)
        if self.procedure == "tolerance":
            return planned(smoothing, **sizes, alpha=self.alpha, **self._plan)
        if self.procedure == "deadline":
            return anytime(smoothing, **sizes, alpha=self.alpha, rules=self.rules)
        return fixed(smoothing, **sizes, alpha=self.alpha)

    def _begin_with_members(self) -> Procedure:
        smoothing, tally, sizes = self.smoothing, self.tally, {"n0": self.n0, "n": self.n}
        if self.mode == "predict":
            return vote_by_members(tally, n=self.n, alpha=self.alpha, slack=smoothing.slack)
        rules = self.rules
        if self.procedure == "radius":
            asked = self.requested or 0.0
            return decide_by_members(smoothing, tally, **sizes, alpha=self.alpha, radius=asked, rules=rules)
        if self.procedure == "tolerance":
            return planned_by_members(smoothing, tally, **sizes, alpha=self.alpha, **self._plan)
        if self.procedure == "deadline":
            return decide_by_members(smoothing, tally, **sizes, alpha=self.alpha, start=ANYTIME_START, rules=rules)
        return fixed_by_members(smoothing, tally, **sizes, alpha=self.alpha)

    @property
    def _plan(self) -> dict[str, Any]:
        """What a plan depends on besides the sizes."""
        return {"tolerance": self.requested or 0.0, "quantile": self.quantile, "rules": self.rules}

    @property
    def _level(self) -> float:
        """The share of alpha that one member has, or the only classifier there is."""
        return self.alpha / (len(self.tally.betas) if self.tally.members else 1)

    def check_reach(self) -> None:
        """Refuse what no votes could ever prove: n too small for alpha, or a radius beyond unanimity."""
        if self.mode == "predict":
            least = smallest_n(self._level / (2 * len(prediction_looks(self.n))))
            if self.n < least:
                raise SampleSizeError(
                    f"{self.n} samples cannot decide anything at alpha = {self.alpha}: use n >= {least}."
                )
            return
        largest = self._largest_radius(self.n)
        if largest == 0:
            raise SampleSizeError(
                f"{self.n} samples cannot certify anything at alpha = {self.alpha}, even if all agree: "
                f"{self._advice()}, or a larger alpha."
            )
        if self.procedure == "radius" and self.requested is not None and self.requested > largest:
            raise SampleSizeError(
                f"A radius of {self.requested} is out of reach of n = {self.n} samples, alpha = {self.alpha}, sigma = "
                f"{self.smoothing.sigma}: even if all agree they prove {largest}. Use a larger n, or ask for less."
            )

    def _advice(self) -> str:
        """The least n that certifies something if all agree, found by bisection: what n samples prove grows with n."""
        too_few, enough = self.n, MAX_N
        if self._largest_radius(enough) == 0:
            return f"no n does at sigma = {self.smoothing.sigma}; use a larger sigma"
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            too_few, enough = (too_few, middle) if self._largest_radius(middle) > 0 else (middle, enough)
        return f"use n >= {enough}"

    def _largest_radius(self, n: int) -> float:
        """What n samples prove if all agree."""
        votes = np.zeros(self.tally.classes + 1, dtype=np.int64)
        votes[0] = n
        starts = {"radius": DECIDE_START, "deadline": ANYTIME_START}
        if self.procedure in starts:
            rule = rule_of(self.rules, self.smoothing, n=n, start=starts[self.procedure], alpha=self._level)
            return round_radius_down(rule.prove(votes, 0).radius)
        prove = estimate if self.n0 else estimate_same_sample
        return round_radius_down(prove(self.smoothing, votes, 0, self._level).radius)
