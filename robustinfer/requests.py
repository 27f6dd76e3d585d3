"""A request: one image and what is asked about it, checked before any work is done."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .card import Card
from .certificate import METHOD, VOTES_METHOD, ProcedureName, SeedOrigin
from .errors import DtypeError, SampleSizeError, SettingError, SigmaError
from .images import as_image, to_unit
from .settings import MAX_N, REPLAYED, SETTINGS, Mode, Setting, check
from .smoothing.bounds import round_radius_down, smallest_n
from .smoothing.domains import FINE_SIGMAS, Domain, GridDomain, rounding_cost
from .smoothing.estimates import Smoothing, estimate, estimate_same_sample
from .smoothing.kinds import Bound, NoiseKind
from .smoothing.member_procedures import decide_by_members, fixed_by_members, planned_by_members, vote_by_members
from .smoothing.noise import add_noise, fresh_seed, total_variation
from .smoothing.procedures import (
    ANYTIME_START,
    DECIDE_START,
    Procedure,
    anytime,
    decide,
    fixed,
    looks,
    planned,
    prediction_looks,
    vote,
)
from .smoothing.tally import Tally
from .voting import tally_of

__all__ = ["Question", "Request", "selection_of"]

SELECTION = 100  # samples on which the label is chosen, if n is large
PILOT = 500  # samples that choose the label and plan the sample size


@dataclass(frozen=True, kw_only=True)
class Request:
    """One image and what is asked about it. What is None is chosen by the predictor.

    `settings.SETTINGS` says what each setting means, its limits and its default. `radius`, `tolerance` and `deadline`
    ask for a certificate with fewer samples; `radius` and `deadline` go together.
    """

    image: Any
    mode: Mode = "certify"
    n: int | None = None
    alpha: float | None = None
    radius: float | None = None
    tolerance: float | None = None
    deadline: float | None = None
    bound: Bound | None = None
    n0: int | None = None
    members: bool | None = None
    sigma: float | None = None
    domain: GridDomain | None = None
    noise: NoiseKind | None = None
    seed: int | None = None

    def ask(self, card: Card, *, derived_seed: bool = False, replayed: Domain | None = None) -> "Question":
        """Check everything against the table of settings and the card, and settle what was left open.

        `derived_seed` says that the seed was derived from that of a data set. `replayed` is the domain of a certificate
        that is drawn again: continuous noise can only be replayed, and so can numbers beyond today's limits.
        """
        given = check(self.mode, {name: getattr(self, name) for name in SETTINGS}, replayed=replayed is not None)
        procedure = _procedure(given)
        n0 = _n0(self.mode, procedure, given)
        image = as_image(self.image, card.input)
        domain = _domain(replayed or given["domain"], image.dtype.name)
        sigma, size = _sigma(given["sigma"], card, domain, REPLAYED if replayed else SETTINGS), card.input.size
        bound: Bound = given["bound"] or ("two-class" if n0 else "top-class")
        question = Question(
            image=to_unit(image) if domain == "continuous" else image,
            domain=domain,
            mode=self.mode,
            procedure=procedure,
            smoothing=Smoothing(sigma, bound, total_variation(domain, sigma, size), rounding_cost(domain, size)),
            alpha=given["alpha"],
            n=given["n"],
            n0=n0,
            requested=None if procedure == "fixed" else given[procedure],
            deadline=given["deadline"],
            seed=fresh_seed() if given["seed"] is None else given["seed"],
            seed_origin="runtime" if given["seed"] is None else "data set" if derived_seed else "caller",
            tally=_tally(given["members"], card),
        )
        question.check_reach()
        return question


@dataclass(frozen=True)
class Question:
    """A request in which everything is settled: what a job needs, and what a certificate records."""

    image: npt.NDArray[Any]
    domain: Domain
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

    @property
    def method(self) -> str:
        """How the radius is proven, as a certificate names it."""
        return VOTES_METHOD if self.tally.members else METHOD

    def draw(self, first: int, out: npt.NDArray[np.float32]) -> None:
        """Fill `out` with the noisy images of samples first, first + 1, ...: the same ones for the same seed."""
        add_noise(self.image, domain=self.domain, sigma=self.smoothing.sigma, seed=self.seed, first=first, out=out)

    def begin(self) -> Procedure:
        """The statistical procedure that answers this question, from its start."""
        if self.tally.members:
            return self._begin_with_members()
        classes = self.tally.classes
        if self.mode == "predict":
            return vote(classes=classes, n=self.n, alpha=self.alpha, slack=self.smoothing.slack)
        smoothing, sizes = self.smoothing, {"classes": classes, "n0": self.n0, "n": self.n}
        if self.procedure == "radius":
            return decide(smoothing, **sizes, alpha=self.alpha, radius=self.requested or 0.0)
        if self.procedure == "tolerance":
            return planned(smoothing, **sizes, alpha=self.alpha, tolerance=self.requested or 0.0)
        if self.procedure == "deadline":
            return anytime(smoothing, **sizes, alpha=self.alpha)
        return fixed(smoothing, **sizes, alpha=self.alpha)

    def _begin_with_members(self) -> Procedure:
        smoothing, tally, sizes = self.smoothing, self.tally, {"n0": self.n0, "n": self.n}
        if self.mode == "predict":
            return vote_by_members(tally, n=self.n, alpha=self.alpha, slack=smoothing.slack)
        if self.procedure == "radius":
            return decide_by_members(smoothing, tally, **sizes, alpha=self.alpha, radius=self.requested or 0.0)
        if self.procedure == "tolerance":
            return planned_by_members(smoothing, tally, **sizes, alpha=self.alpha, tolerance=self.requested or 0.0)
        if self.procedure == "deadline":
            return decide_by_members(smoothing, tally, **sizes, alpha=self.alpha, start=ANYTIME_START)
        return fixed_by_members(smoothing, tally, **sizes, alpha=self.alpha)

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
        share = self._level / len(looks(n, starts[self.procedure])) if self.procedure in starts else self._level
        prove = estimate if self.n0 else estimate_same_sample
        return round_radius_down(prove(self.smoothing, votes, 0, share).radius)


def selection_of(n: int) -> int:
    """How many samples choose the label before n others bound it: 1/40 of them, from 10 to 100.

    With fewer the label is too often the wrong one, with more too little is left of a small budget; measured by
    benchmarks/speed/bound_choice.py, which also finds this better than choosing the label on the n samples themselves.
    """
    return max(10, min(SELECTION, n // 40))


def _procedure(given: Mapping[str, Any]) -> ProcedureName:
    for name in ("tolerance", "radius", "deadline"):
        if given[name] is not None:
            return name  # each is the name of its procedure, too
    return "fixed"


def _n0(mode: Mode, procedure: ProcedureName, given: Mapping[str, Any]) -> int:
    if mode == "predict":
        return 0
    if given["n0"] is None:
        return {"fixed": selection_of(given["n"]), "tolerance": PILOT, "deadline": 32}.get(procedure, SELECTION)
    if given["n0"] == 0 and procedure != "fixed":
        raise SettingError(
            f"Expected a positive n0 for the procedure {procedure}, found 0: it chooses the label on them."
        )
    return int(given["n0"])


def _tally(members: bool | None, card: Card) -> Tally:
    if members and card.kind != "votes":
        raise SettingError(
            f"Certificates from members need a file in which the members vote; {card.name!r} holds the scores of "
            "the whole ensemble: export the run with `robust export --members`."
        )
    return tally_of(card, members=card.kind == "votes" if members is None else members)


def _sigma(sigma: float | None, card: Card, domain: Domain, settings: Mapping[str, Setting]) -> float:
    other = sigma is not None and card.sigma is not None and not math.isclose(sigma, card.sigma, rel_tol=1e-9)
    if other and card.noise_trained:  # a model that was not trained with noise has no sigma that suits it best
        raise SigmaError(
            f"The model {card.name!r} was trained for sigma = {card.sigma}, found {sigma}: leave sigma out."
        )
    if sigma is None and card.sigma is None:
        raise SigmaError(f"The model {card.name!r} was not trained for smoothing and its card has no sigma: pass one.")
    found = settings["sigma"].check(card.sigma if sigma is None else sigma)
    smallest, largest = FINE_SIGMAS
    if domain == "16-bit" and not smallest <= found <= largest:
        raise SigmaError(
            f"Expected a sigma from {smallest} to {largest} in the 16-bit domain, found {found}: pass uint8 images."
        )
    return float(found)


def _domain(domain: Domain | None, dtype: str) -> Domain:
    """The domain by the type of the pixels alone, never by their values: neighbours get the same classifier."""
    if domain == "8-bit" and dtype != "uint8":
        raise DtypeError(
            f"The 8-bit domain is that of uint8 images, found {dtype} pixels: pass uint8, or use the 16-bit domain."
        )
    return domain or ("8-bit" if dtype == "uint8" else "16-bit")
