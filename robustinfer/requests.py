"""A request: one image and what is asked about it, checked before any work is done."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .card import Card
from .certificate import ProcedureName
from .errors import DtypeError, SettingError, SigmaError
from .images import as_image, to_unit
from .questions import Question
from .settings import REPLAYED, SETTINGS, Mode, Setting, check
from .smoothing.domains import FINE_SIGMAS, Domain, GridDomain, NoiseName, domain_of_noise, noise_name, rounding_cost
from .smoothing.estimates import Smoothing
from .smoothing.kinds import Bound, NoiseKind
from .smoothing.noise import fresh_seed, total_variation
from .smoothing.planning import QUANTILE
from .smoothing.rules import RULES
from .smoothing.tally import Tally
from .voting import tally_of

__all__ = ["PILOT", "SELECTION", "Request", "selection_of"]

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
    quantile: float | None = None
    deadline: float | None = None
    bound: Bound | None = None
    n0: int | None = None
    members: bool | None = None
    sigma: float | None = None
    domain: GridDomain | None = None
    noise: NoiseKind | None = None
    seed: int | None = None

    def ask(
        self, card: Card, *, derived_seed: bool = False, replayed: NoiseName | None = None, rules: int = RULES
    ) -> Question:
        """Check everything against the table of settings and the card, and settle what was left open.

        `derived_seed` says that the seed was derived from that of a data set. `replayed` is the noise of a certificate
        that is drawn again: older kinds can only be replayed, and so can numbers beyond today's limits. `rules` is the
        edition by which it was made.
        """
        given = check(self.mode, {name: getattr(self, name) for name in SETTINGS}, replayed=replayed is not None)
        procedure = _procedure(given)
        n0 = _n0(self.mode, procedure, given)
        image = as_image(self.image, card.input)
        domain = _domain(domain_of_noise(replayed) if replayed else given["domain"], image.dtype.name)
        noise = replayed or noise_name(domain)
        sigma, size = _sigma(given["sigma"], card, domain, REPLAYED if replayed else SETTINGS), card.input.size
        bound: Bound = given["bound"] or ("two-class" if n0 else "top-class")
        tally = _tally(given["members"], card)
        question = Question(
            image=to_unit(image) if domain == "continuous" else image,
            noise=noise,
            mode=self.mode,
            procedure=procedure,
            smoothing=Smoothing(sigma, bound, total_variation(noise, sigma, size), rounding_cost(domain, size)),
            alpha=given["alpha"],
            n=given["n"],
            n0=n0,
            requested=None if procedure == "fixed" else given[procedure],
            deadline=given["deadline"],
            seed=fresh_seed() if given["seed"] is None else given["seed"],
            seed_origin="runtime" if given["seed"] is None else "data set" if derived_seed else "caller",
            tally=tally,
            quantile=_quantile(given, tally, replayed=replayed is not None),
            rules=rules,
        )
        question.check_reach()
        return question


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
            "the whole ensemble: export the run with `robust export --votes`."
        )
    return tally_of(card, members=card.kind == "votes" if members is None else members)


def _quantile(given: Mapping[str, Any], tally: Tally, *, replayed: bool) -> float | None:
    """That of the plan for a tolerance. Plans of members have always had one, which older certificates do not name."""
    if tally.members and given["tolerance"] is not None and not replayed:
        return given["quantile"] or QUANTILE
    found: float | None = given["quantile"]
    return found


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
