"""The settings of a request: name, type, limits, default and meaning of each, in one table.

`Request`, `Predictor`, the command line, the clients, the HTTP fields, the OpenAPI document and the documentation take
them from here, or are compared with it by `tests/robustinfer/test_settings.py`. A new setting is one row of `SETTINGS`,
one field of `Request` and of the dictionaries below, one argument of `Predictor.certify` and `predict`, and one option
of the commands; the tests name whatever was forgotten.
"""

import dataclasses
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, get_args

from .errors import AlphaError, SampleSizeError, SettingError, SigmaError
from .smoothing.domains import GridDomain
from .smoothing.kinds import Bound, NoiseKind

__all__ = [
    "CERTIFY_N",
    "MAX_N",
    "MODE",
    "PREDICT_N",
    "REPLAYED",
    "SETTINGS",
    "CertifyManySettings",
    "CertifySettings",
    "GridDomain",
    "Mode",
    "PredictSettings",
    "Setting",
    "check",
    "short",
]

Mode = Literal["certify", "predict"]

PREDICT_N = 1_000
CERTIFY_N = 100_000
MAX_N = 10**9  # votes are counted exactly far beyond; a fast engine draws as many in about a day


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting. `kind` is its type, or the words it may be.

    A number lies between `least` and `most`, and strictly above `above`. `defaults` is what None means, by mode; where
    there is none the predictor chooses, and `chosen` says what. `modes` are those the setting belongs to.
    """

    name: str
    kind: type | tuple[str, ...]
    help: str
    above: float | None = None
    least: float | None = None
    most: float | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    chosen: str | None = None
    unit: str | None = None
    modes: tuple[str, ...] = get_args(Mode)
    error: type[SettingError] = SettingError

    @property
    def expected(self) -> str:
        """What its value is, in words."""
        if isinstance(self.kind, tuple):
            return " or ".join(self.kind)
        if self.kind is bool:
            return "true or false"
        noun = "a whole number" if self.kind is int else "a number"
        if self.least is not None and self.most is not None:
            return f"{noun} from {_number(self.least)} to {_number(self.most)}"
        bounds = [] if self.above is None else [f"above {_number(self.above)}"]
        bounds += [] if self.most is None else [f"at most {_number(self.most)}"]
        return " ".join([noun, " and ".join(bounds)]).strip()

    def fits(self, value: Any) -> bool:
        """Whether a value has the type, or is one of the words."""
        if isinstance(self.kind, tuple):
            return isinstance(value, str) and value in self.kind
        if isinstance(value, bool) or self.kind is bool:
            return isinstance(value, bool) and self.kind is bool  # True is an int to Python only
        return isinstance(value, numbers.Integral if self.kind is int else numbers.Real)

    def check(self, value: Any) -> Any:
        """The value as its own type, or an error that says what was expected."""
        if not self.fits(value):
            raise self.refusal(value)
        if isinstance(self.kind, tuple):
            return value
        try:
            number = self.kind(value)
        except (OverflowError, ValueError):
            raise self.refusal(value) from None
        if not self._within(number):
            raise self.refusal(value)
        return number

    def parse(self, text: str) -> Any:
        """The value that a form or a query string writes as text; None if it has another type."""
        if isinstance(self.kind, tuple):
            return text if text in self.kind else None
        if self.kind is bool:
            return {"true": True, "false": False}.get(text.lower())
        try:
            return self.kind(text)
        except ValueError:
            return None

    def refusal(self, value: Any) -> SettingError:
        """The error for a value that cannot be used."""
        unit = f" ({self.unit})" if self.unit else ""
        return self.error(f"Expected {self.expected} for {self.name}{unit}, found {short(value)}.")

    def schema(self) -> dict[str, Any]:
        """The setting as JSON Schema."""
        if isinstance(self.kind, tuple):
            found: dict[str, Any] = {"enum": list(self.kind)}
        else:
            found = {"type": {int: "integer", float: "number", bool: "boolean"}[self.kind]}
        limits = {"exclusiveMinimum": self.above, "minimum": self.least, "maximum": self.most}
        found |= {name: limit for name, limit in limits.items() if limit is not None}
        if len(self.defaults) == len(self.modes) and len(set(self.defaults.values())) == 1:
            found["default"] = next(iter(self.defaults.values()))
        return found

    def _within(self, number: float) -> bool:
        if isinstance(number, float) and not math.isfinite(number):
            return False
        above, least, most = self.above, self.least, self.most
        return (
            (above is None or number > above)
            and (least is None or number >= least)
            and (most is None or number <= most)
        )


MODE = Setting(
    name="mode",
    kind=get_args(Mode),
    help="certify for a label and a certified radius, predict for the label alone.",
    defaults={"certify": "certify", "predict": "certify"},
)

_CERTIFY = ("certify",)

_TABLE = (
    Setting(
        name="n",
        kind=int,
        help="Maximum samples per image.",
        least=1,
        most=MAX_N,
        defaults={"certify": CERTIFY_N, "predict": PREDICT_N},
        chosen="100,000 to certify, 1,000 to predict",
        error=SampleSizeError,
    ),
    Setting(
        name="alpha",
        kind=float,
        help="Maximum probability that the answer is wrong.",
        least=1e-9,  # shares of it are still far above 1e-300, where quantiles lose their digits
        most=0.5,  # beyond it an answer is more likely wrong than right
        defaults={"certify": 0.001, "predict": 0.001},
        error=AlphaError,
    ),
    Setting(
        name="radius",
        kind=float,
        help="Decide this radius, and stop as soon as it is decided.",
        least=1e-6,  # radii are multiples of it
        most=1e3,  # no sigma that is allowed proves as much
        modes=_CERTIFY,
    ),
    Setting(
        name="tolerance",
        kind=float,
        help="Use fewer samples than n, and lose about this much radius: on average, not as a limit per image.",
        least=1e-6,
        most=1e3,
        modes=_CERTIFY,
    ),
    Setting(
        name="quantile",
        kind=float,
        help="Plan each image separately, so that it stays within the tolerance with this probability, judged by its "
        "pilot.",
        least=0.5,
        most=0.99,
        chosen="none: a tolerance is kept on average, at the least cost; 0.7 where members vote",
        modes=_CERTIFY,
    ),
    Setting(
        name="deadline",
        kind=float,
        help="Return the best certificate this many seconds can buy.",
        above=0,
        most=86_400,  # a day
        unit="seconds",
        modes=_CERTIFY,
    ),
    Setting(
        name="bound",
        kind=get_args(Bound),
        help="two-class, or top-class as in published tables.",
        chosen="two-class; top-class if n0 is 0",
        modes=_CERTIFY,
    ),
    Setting(
        name="n0",
        kind=int,
        help="Samples on which the label is chosen; 0 chooses it on the n samples themselves.",
        least=0,
        most=MAX_N,
        chosen="10 to 100, by n; 500 with a tolerance; 32 with a deadline",
        modes=_CERTIFY,
        error=SampleSizeError,
    ),
    Setting(
        name="members",
        kind=bool,
        help="Certify each member at its share of alpha and combine their votes, or the ensemble as one classifier.",
        chosen="members for a votes file",
    ),
    Setting(
        name="sigma",
        kind=float,
        help="Standard deviation of the noise, for a model whose card has none.",
        least=1e-4,  # a fortieth of a grey level: less does not change one 8-bit pixel in 10^80
        most=16,  # pixels are in [0,1]: more is most likely a sigma in grey levels
        chosen="the card's",
        unit="pixels are in [0,1]",
        error=SigmaError,
    ),
    Setting(
        name="domain",
        kind=get_args(GridDomain),
        help="Certify among 8-bit images, or among all images in [0,1], rounded to 16 bits.",
        chosen="8-bit for uint8 pixels, 16-bit for floating ones",
    ),
    Setting(
        name="noise",
        kind=get_args(NoiseKind),
        help="Kind of noise; continuous noise is no longer offered, because no proof covers its rounding.",
        chosen="integer",
    ),
    Setting(
        name="seed",
        kind=int,
        help="Seed of the noise.",
        least=0,
        most=2**64 - 1,
        chosen="from the operating system",
    ),
)

SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _TABLE}
"""Every setting of a request, by name, in the order people meet them."""


class _BothSettings(TypedDict, total=False):
    """The settings of both modes, but for the seed; None leaves the choice to the predictor."""

    n: int | None
    alpha: float | None
    members: bool | None
    sigma: float | None
    domain: GridDomain | None
    noise: NoiseKind | None


class PredictSettings(_BothSettings, total=False):
    """The settings of `Predictor.predict`."""

    seed: int | None


class CertifyManySettings(_BothSettings, total=False):
    """The settings of `Predictor.certify_many` for each image, whose seeds are given otherwise."""

    radius: float | None
    tolerance: float | None
    quantile: float | None
    deadline: float | None
    bound: Bound | None
    n0: int | None


class CertifySettings(CertifyManySettings, PredictSettings, total=False):
    """The settings of `Predictor.certify`."""


REPLAYED: dict[str, Setting] = SETTINGS | {
    "alpha": dataclasses.replace(SETTINGS["alpha"], least=1e-300, most=math.nextafter(1.0, 0.0)),
    "sigma": dataclasses.replace(SETTINGS["sigma"], least=1e-9),  # a smaller one proves no radius that can be written
    "deadline": dataclasses.replace(SETTINGS["deadline"], most=1e300),
}
"""The settings of a certificate that is drawn again: older versions allowed more, and what they proved stays proven."""


def check(mode: Any, values: Mapping[str, Any], *, replayed: bool = False) -> dict[str, Any]:
    """The settings of a request with types, limits and defaults applied; None where the predictor has to choose."""
    if not MODE.fits(mode):
        raise MODE.refusal(mode)
    checked: dict[str, Any] = {}
    for name, setting in (REPLAYED if replayed else SETTINGS).items():
        value = values.get(name)
        if value is None:
            checked[name] = setting.defaults.get(mode)
        elif mode in setting.modes:
            checked[name] = setting.check(value)
        else:
            raise SettingError(f"{name} belongs to the mode {' and '.join(setting.modes)}: leave it out to {mode}.")
    if checked["tolerance"] is not None and not checked["radius"] is checked["deadline"] is None:
        raise SettingError("tolerance plans its own number of samples: leave out radius and deadline.")
    if checked["quantile"] is not None and checked["tolerance"] is None:
        raise SettingError("quantile needs a tolerance: pass one, or leave quantile out.")
    return checked


def short(value: Any) -> str:
    """A value as an error shows it: never long, whoever sent it."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _number(value: float) -> str:
    if value == 2**64 - 1:
        return "2^64 - 1"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
