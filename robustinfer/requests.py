"""A request: one image and what is asked about it, checked before any work is done."""

import itertools
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .card import Card
from .certificate import METHOD, VOTES_METHOD, ProcedureName
from .errors import AlphaError, DtypeError, SampleSizeError, SettingError, SigmaError
from .images import as_image, to_unit
from .smoothing.bounds import round_radius_down, smallest_n
from .smoothing.estimates import Bound, Smoothing, estimate, estimate_same_sample
from .smoothing.member_procedures import decide_by_members, fixed_by_members, planned_by_members, vote_by_members
from .smoothing.noise import NoiseKind, add_noise, fresh_seed, total_variation
from .smoothing.procedures import ANYTIME_START, DECIDE_START, Procedure, anytime, decide, fixed, looks, planned, vote
from .smoothing.tally import Tally

__all__ = ["Question", "Request", "selection_of"]

PREDICT_N = 1_000
CERTIFY_N = 100_000
SELECTION = 100  # samples on which the label is chosen, if n is large
PILOT = 500  # samples that choose the label and plan the sample size
MAX_SIGMA = 16  # pixels are in [0,1]: more is most likely a sigma in grey levels


@dataclass(frozen=True, kw_only=True)
class Request:
    """One image and what is asked about it. What is None is chosen by the predictor.

    `n` is the number of samples allowed (1,000 to predict, 100,000 to certify). `radius`, `tolerance` and `deadline`
    (seconds) ask for a certificate with fewer samples; `radius` and `deadline` go together. `n0` samples choose the
    label; 0 chooses it on the n samples themselves. `bound` is "two-class" by default, "top-class" where n0 is 0.
    `members` certifies each member of a votes file and combines them, which is the default of such a file; False
    certifies its plurality vote as one classifier.
    """

    image: Any
    mode: Literal["predict", "certify"] = "certify"
    n: int | None = None
    alpha: float = 0.001
    n0: int | None = None
    radius: float | None = None
    tolerance: float | None = None
    deadline: float | None = None
    bound: Bound | None = None
    sigma: float | None = None
    noise: NoiseKind | None = None
    seed: int | None = None
    members: bool | None = None

    def ask(self, card: Card) -> "Question":
        """Check everything against the card, and settle what was left open."""
        alpha = _alpha(self.alpha)
        n = _whole("n", self.n, default=PREDICT_N if self.mode == "predict" else CERTIFY_N)
        procedure = self._procedure()
        n0 = self._n0(procedure, n)
        bound = self._bound(n0)
        sigma = _sigma(self.sigma, card)
        image, kind = _prepared(self.image, self.noise, card)
        smoothing = Smoothing(sigma, bound, total_variation(kind, sigma, card.input.size))
        question = Question(
            image,
            kind,
            self.mode,
            procedure,
            smoothing,
            alpha,
            n,
            n0,
            self._requested(procedure),
            self.deadline,
            _seed(self.seed),
            self._tally(card),
        )
        question.check_reach()
        return question

    def _tally(self, card: Card) -> Tally:
        if self.members and card.kind != "votes":
            raise SettingError(
                f"Certificates from members need a file in which the members vote; {card.name!r} holds the scores of "
                "the whole ensemble: export the run with `robust export --members`."
            )
        return Tally.of(card, members=card.kind == "votes" if self.members is None else bool(self.members))

    def _procedure(self) -> ProcedureName:
        for name in ("radius", "tolerance", "deadline"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
                raise SettingError(f"Expected a positive number for {name}, found {value!r}.")
        if self.mode not in {"predict", "certify"}:
            raise SettingError(f"Expected the mode predict or certify, found {self.mode!r}.")
        if self.mode == "predict":
            if any(value is not None for value in (self.radius, self.tolerance, self.deadline, self.n0, self.bound)):
                raise SettingError("radius, tolerance, deadline, n0 and bound belong to the mode certify.")
            return "fixed"
        if self.tolerance is not None:
            if self.radius is not None or self.deadline is not None:
                raise SettingError("tolerance plans its own number of samples: leave out radius and deadline.")
            return "tolerance"
        if self.radius is not None:
            return "radius"
        return "fixed" if self.deadline is None else "deadline"

    def _n0(self, procedure: ProcedureName, n: int) -> int:
        if self.mode == "predict":
            return 0
        defaults = {"fixed": selection_of(n), "tolerance": PILOT, "deadline": 32}
        n0 = _whole("n0", self.n0, default=defaults.get(procedure, SELECTION), smallest=0)
        if n0 == 0 and procedure != "fixed":
            raise SettingError(
                f"Expected a positive n0 for the procedure {procedure}, found 0: it chooses the label on them."
            )
        return n0

    def _bound(self, n0: int) -> Bound:
        if self.bound is None:
            return "two-class" if n0 else "top-class"
        if self.bound not in {"top-class", "two-class"}:
            raise SettingError(f"Expected the bound top-class or two-class, found {self.bound!r}.")
        return self.bound

    def _requested(self, procedure: ProcedureName) -> float | None:
        return {"radius": self.radius, "tolerance": self.tolerance, "deadline": self.deadline}.get(procedure)


@dataclass(frozen=True)
class Question:
    """A request in which everything is settled: what a job needs, and what a certificate records."""

    image: npt.NDArray[Any]
    noise: NoiseKind
    mode: Literal["predict", "certify"]
    procedure: ProcedureName
    smoothing: Smoothing
    alpha: float
    n: int
    n0: int
    requested: float | None
    deadline: float | None
    seed: int
    tally: Tally

    @property
    def method(self) -> str:
        """How the radius is proven, as a certificate names it."""
        return VOTES_METHOD if self.tally.members else METHOD

    def draw(self, first: int, out: npt.NDArray[np.float32]) -> None:
        """Fill `out` with the noisy images of samples first, first + 1, ...: the same ones for the same seed."""
        add_noise(self.image, kind=self.noise, sigma=self.smoothing.sigma, seed=self.seed, first=first, out=out)

    def begin(self) -> Procedure:
        """The statistical procedure that answers this question, from its start."""
        if self.tally.members:
            return self._begin_with_members()
        classes = self.tally.classes
        if self.mode == "predict":
            return vote(classes=classes, n=self.n, alpha=self.alpha)
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
            return vote_by_members(tally, n=self.n, alpha=self.alpha)
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
            least = smallest_n(self._level / (2 * len(looks(self.n, min(self.n, 100), 2.0))))
            if self.n < least:
                raise SampleSizeError(
                    f"{self.n} samples cannot decide anything at alpha = {self.alpha}: use n >= {least}."
                )
            return
        largest = self._largest_radius(self.n)
        if largest == 0:
            least = next(n for n in itertools.count(self.n + 1) if self._largest_radius(n) > 0)
            raise SampleSizeError(
                f"{self.n} samples cannot certify anything at alpha = {self.alpha}, even if all agree: "
                f"use n >= {least}, or a larger alpha."
            )
        if self.procedure == "radius" and self.requested is not None and self.requested > largest:
            raise SampleSizeError(
                f"A radius of {self.requested} is out of reach of n = {self.n} samples, alpha = {self.alpha}, sigma = "
                f"{self.smoothing.sigma}: even if all agree they prove {largest}. Use a larger n, or ask for less."
            )

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
    benchmarks/bound_choice.py, which also finds this better than choosing the label on the n samples themselves.
    """
    return max(10, min(SELECTION, n // 40))


def _alpha(alpha: Any) -> float:
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < 1:
        raise AlphaError(f"Expected an alpha between 0 and 1, found {alpha!r}.")
    return float(alpha)


def _whole(name: str, value: Any, *, default: int, smallest: int = 1) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < smallest:
        raise SampleSizeError(f"Expected a whole number of at least {smallest} for {name}, found {value!r}.")
    return int(value)


def _seed(seed: Any) -> int:
    if seed is None:
        return fresh_seed()
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or not 0 <= seed.__index__() < 2**64:
        raise SettingError(f"Expected a seed from 0 to 2^64 - 1, found {seed!r}.")
    return int(seed)


def _sigma(sigma: float | None, card: Card) -> float:
    found = _own_sigma(sigma, card)
    if found > MAX_SIGMA:
        raise SigmaError(f"Expected a sigma of at most {MAX_SIGMA} in units of pixels in [0,1], found {found}.")
    return found


def _own_sigma(sigma: float | None, card: Card) -> float:
    if sigma is None:
        if card.sigma is None:
            raise SigmaError(
                f"The model {card.name!r} was not trained for smoothing and its card has no sigma: pass one."
            )
        return card.sigma
    if isinstance(sigma, bool) or not isinstance(sigma, int | float) or not 0 < sigma < math.inf:
        raise SigmaError(f"Expected a positive sigma, found {sigma!r}.")
    if card.sigma is not None and not math.isclose(sigma, card.sigma, rel_tol=1e-9):
        raise SigmaError(
            f"The model {card.name!r} was trained for sigma = {card.sigma}, found {sigma}: leave sigma out."
        )
    return float(sigma)


def _prepared(image: Any, noise: NoiseKind | None, card: Card) -> tuple[npt.NDArray[Any], NoiseKind]:
    if noise not in {None, "integer", "continuous"}:
        raise SettingError(f"Expected the noise integer or continuous, found {noise!r}.")
    pixels = as_image(image, card.input)
    if pixels.dtype.name == "uint8":
        return (to_unit(pixels), "continuous") if noise == "continuous" else (pixels, "integer")
    if noise == "integer":
        raise DtypeError(
            "Integer noise is for uint8 images; found floating pixels: pass uint8, or use continuous noise."
        )
    return pixels, "continuous"
