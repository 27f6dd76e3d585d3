"""The answers: a prediction, and a certificate with all that is needed to check it again."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from .errors import CertificateError
from .settings import short
from .smoothing.domains import Domain, NoiseName, domain_of_noise, known_noise
from .smoothing.kinds import Bound

__all__ = [
    "METHOD",
    "OPTIONAL",
    "VOTES_METHOD",
    "Certificate",
    "MemberVotes",
    "ModelReference",
    "Prediction",
    "ProcedureName",
    "SeedOrigin",
    "read_json",
]

ProcedureName = Literal["fixed", "radius", "tolerance", "deadline"]
SeedOrigin = Literal["runtime", "caller", "data set"]

METHOD = "clopper-pearson"
VOTES_METHOD = "clopper-pearson/votes"
"""Each member is certified at its share of alpha, and the radius is that of their weighted plurality vote."""

_LABEL = "the label of the smoothed classifier"
_VOTES_LABEL = "the weighted plurality vote of the smoothed members"

_GUARANTEES: dict[Domain, str] = {
    "8-bit": (
        "{label} is the same for every 8-bit image at an l2 distance below the radius, where the noise is Gaussian, "
        "rounded to 8-bit steps; wrong with probability at most alpha"
    ),
    "16-bit": (
        "{label} is the same for every image with pixels in [0,1] at an l2 distance below the radius, where images are "
        "rounded to 16 bits and the noise is Gaussian, rounded to 16-bit steps; wrong with probability at most alpha"
    ),
    "continuous": (
        "if pixels and noise were added without rounding, {label} would be the same for every image at an l2 distance "
        "below the radius, except with probability at most alpha; the rounding of the sums is not covered"
    ),
}
"""What is proven in each domain, and of what."""

_OLD_GUARANTEE = (
    "no change of the image with l2 norm below the radius alters {label}; wrong with probability at most alpha"
)
"""The sentence of certificates that do not name their domain, whatever their noise was."""


_WHOLE = {"n", "n0", "samples_used", "looks", "invalid", "seed", "rules"}
_REAL = {"radius", "sigma", "alpha", "p_lower", "seconds"}
_REAL_OR_NULL = {"p_upper_runner_up", "requested", "radius_linf", "quantile"}
_TEXT = {"norm", "method", "bound", "procedure", "noise", "stopped", "image"}
_LARGEST = {"seed": 2**64}  # one above the largest; 2^63 for the other whole numbers

OPTIONAL = frozenset({"members", "seed_origin", "radius_linf", "rules", "quantile"})
"""Fields that a certificate may lack: it has no voting members, or an older version made it and it claims less."""

_DERIVED = {"domain", "guarantee", "radius_l1"}  # written for the reader; each follows from the other fields
# What may stand beside the fields and claims nothing: the file and the label without noise that `robust certify` names,
# and what a server that signs sends (`signing.py`).
_BESIDE = {"file", "plain", "signature"}

_Result = TypeVar("_Result", "Prediction", "Certificate")


@dataclass(frozen=True)
class ModelReference:
    """Which model answered."""

    name: str
    version: str
    digest: str


@dataclass(frozen=True)
class Prediction:
    """The label of the smoothed classifier, or an abstention: wrong with probability at most alpha.

    `counts` are the votes per class; `invalid` counts samples whose scores were not finite, which vote for no class.
    `n` is what was asked for, `samples_used` what was needed. `stopped` says why the sampling ended: "decided"
    (the label is clear), "exhausted" (all n samples were used) or "interrupted". `seed_origin` is as in a certificate.
    """

    label: int | None
    class_name: str | None
    abstained: bool
    counts: tuple[int, ...]
    invalid: int
    n: int
    samples_used: int
    alpha: float
    sigma: float
    noise: str
    seed: int
    stopped: str
    model: ModelReference
    seconds: float
    seed_origin: SeedOrigin | None = None

    def __post_init__(self) -> None:
        _check_origin(self.seed_origin)

    def to_json(self) -> dict[str, Any]:
        """The prediction as a JSON object."""
        document = _fields(self)
        if self.seed_origin is None:
            del document["seed_origin"]
        return document | {"domain": _domain(self.noise)}

    @classmethod
    def from_json(cls, document: Any) -> "Prediction":
        """Read a prediction."""
        return _read(cls, document)


@dataclass(frozen=True)
class MemberVotes:
    """One member's part in a certificate from votes: what its own votes prove at its share of alpha.

    An abstention has `label` None and `radius` 0, and counts against every label.
    """

    beta: float
    label: int | None
    radius: float
    p_lower: float
    p_upper_runner_up: float | None
    counts: tuple[int, ...]
    invalid: int


@dataclass(frozen=True)
class Certificate:
    """Label, radius, and everything needed to check them again.

    Guarantee: the label of the smoothed classifier is the same for every image of the `domain` at an l2 distance below
    `radius` (pixel units, after resizing). The probability that this statement is wrong is at most `alpha`, over the
    noise of this one certificate. An abstention (`label` None, `radius` 0) claims nothing and is never wrong.

    `counts` are the votes of the estimation samples and `invalid` those that voted for no class (scores not finite);
    the `n0` selection samples came before them, in `samples_used` both are counted. `n` is the number of estimation
    samples allowed. `stopped` says why sampling ended: "complete", "certified" (the requested radius is proven),
    "out of reach" (it cannot be, most likely), "planned" (the pilot's plan was carried out), "exhausted", "deadline"
    or "interrupted". `looks` is the number of times the counts were looked at (procedures radius and deadline), which
    share alpha. `seed_origin` says who chose the seed: "runtime" (drawn from the operating system),
    "caller", or "data set" (derived from the seed of a data set); None in certificates of 0.1. `image` is the digest of
    the pixels that were certified.

    The method "clopper-pearson/votes" is that of a votes file: the label is that of the weighted plurality vote of the
    smoothed members, `members` holds what each of them proves, `p_lower` and `p_upper_runner_up` are those of the
    member whose radius is the certificate's, and `counts` are the plurality votes of the samples.

    `radius_l1` and `radius_linf` are what the l2 radius proves in two other norms: every change is at least as long in
    l1 as in l2, and at most sqrt(d) times as long in l2 as in l_inf, for an image of d values.

    `rules` is the edition of the rules by which the procedures radius, tolerance and deadline look, stop and plan (see
    `smoothing/rules.py`); a certificate without it has the first. `quantile` is that of the plan for a
    tolerance, where it has one: asked for, or that of members that vote.
    """

    label: int | None
    class_name: str | None
    abstained: bool
    radius: float
    norm: str
    method: str
    bound: Bound
    procedure: ProcedureName
    noise: str
    sigma: float
    alpha: float
    n: int
    n0: int
    samples_used: int
    looks: int
    p_lower: float
    p_upper_runner_up: float | None
    counts: tuple[int, ...]
    invalid: int
    seed: int
    stopped: str
    requested: float | None
    image: str
    model: ModelReference
    seconds: float
    members: tuple[MemberVotes, ...] = ()
    seed_origin: SeedOrigin | None = None
    radius_linf: float | None = None
    rules: int | None = None
    quantile: float | None = None

    def __post_init__(self) -> None:
        if self.abstained != (self.label is None) or (self.abstained and self.radius != 0.0):
            raise CertificateError("A certificate has a label and a radius, or it abstains with radius 0.")
        if not math.isfinite(self.radius) or self.radius < 0:
            raise CertificateError(f"A certificate's radius is finite and not negative; this one has {self.radius!r}.")
        if sum(self.counts) + self.invalid != self.samples_used - self.n0:
            raise CertificateError(
                f"A certificate's votes add up to its samples; this one has {sum(self.counts)} + {self.invalid} votes "
                f"of {self.samples_used} - {self.n0} samples."
            )
        _check_origin(self.seed_origin)
        if bool(self.members) != (self.method == VOTES_METHOD):
            raise CertificateError(
                f"A certificate has members if its method is {VOTES_METHOD!r}, and only then; this one has "
                f"{len(self.members)} and the method {self.method!r}."
            )
        for member in self.members:
            if sum(member.counts) + member.invalid != self.samples_used - self.n0:
                raise CertificateError("Each member's votes add up to the samples of a certificate; here they do not.")

    @property
    def guarantee(self) -> str:
        """What is proven, in one sentence."""
        return _GUARANTEES[self.domain].format(label=_VOTES_LABEL if self.members else _LABEL)

    @property
    def domain(self) -> Domain:
        """Among which images the label is certified: "8-bit", "16-bit", or "continuous" in old certificates."""
        return _domain(self.noise)

    @property
    def drawn_noise(self) -> NoiseName:
        """The noise by the names that can be drawn again."""
        return _noise(self.noise)

    @property
    def radius_l1(self) -> float:
        """A change whose l1 norm is below this does not alter the label either: its l2 norm is not larger."""
        return self.radius

    def to_json(self) -> dict[str, Any]:
        """The certificate as a JSON object (also the HTTP answer), without the optional fields that it lacks."""
        document = _fields(self) | {"members": tuple(dict(vars(member)) for member in self.members)}
        for name in OPTIONAL:
            if not document[name] and document[name] != 0:
                del document[name]
        return document | {"radius_l1": self.radius_l1, "domain": self.domain, "guarantee": self.guarantee}

    @classmethod
    def from_json(cls, document: Any) -> "Certificate":
        """Read a certificate, and check what can be checked without the model.

        An unknown field is refused, because nothing could check what it claims.
        """
        if isinstance(document, Mapping):
            document = _renamed(document, "mode", "procedure")
        certificate = _read(cls, document)
        known = {field.name for field in dataclasses.fields(cls)} | _DERIVED | _BESIDE
        unknown = sorted(str(name) for name in document.keys() - known)
        if unknown:
            raise CertificateError(
                f"This certificate has fields that cannot be checked: {', '.join(unknown)}. It was changed, or a newer "
                "robustinfer made it."
            )
        if "guarantee" not in document:
            raise CertificateError("This is not a certificate: guarantee missing.")
        for name in _DERIVED & document.keys():
            expected = getattr(certificate, name)
            # One sentence stood in all certificates of 0.1, which did not know the 16-bit domain.
            if name == "guarantee" and "domain" not in document and certificate.domain != "16-bit":
                expected = _OLD_GUARANTEE.format(label=_VOTES_LABEL if certificate.members else _LABEL)
            if document[name] != expected:
                raise CertificateError(
                    f"The {name} of this certificate follows from its other fields and is {expected!r}; "
                    f"the certificate says {document[name]!r}."
                )
        return certificate

    @classmethod
    def loads(cls, text: str | bytes) -> "Certificate":
        """Read a certificate from JSON text."""
        try:
            document = read_json(text)
        except (ValueError, RecursionError) as error:
            raise CertificateError(f"This is not a certificate: not a JSON document ({error}).") from error
        return cls.from_json(document)


def _fields(answer: "Prediction | Certificate") -> dict[str, Any]:
    """The fields by name, as `dataclasses.asdict` has them: that copies every value, which takes ten times as long."""
    return {**vars(answer), "model": dict(vars(answer.model))}


def _check_origin(origin: Any) -> None:
    if origin not in (None, *get_args(SeedOrigin)):
        raise CertificateError(f"A seed is chosen by the {', '.join(get_args(SeedOrigin))}; this one by {origin!r}.")


def read_json(text: str | bytes) -> Any:
    """A JSON document, or ValueError: one that has a key twice says two things, and readers differ in which they see.

    A forger could write a large radius for people and other programs, and behind it the proven one for `verify`.
    """
    return json.loads(text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError(f"a key appears twice in {short(dict(pairs))}")
    return document


def _domain(noise: str) -> Domain:
    return domain_of_noise(_noise(noise))


def _noise(name: str) -> NoiseName:
    noise = known_noise(name)
    if noise is None:
        raise CertificateError(f"Expected a noise that this robustinfer knows, found {name!r}.")
    return noise


def _read(cls: type[_Result], document: Any) -> _Result:
    if not isinstance(document, Mapping):
        raise CertificateError(f"A {cls.__name__.lower()} is a JSON object; found {type(document).__name__}.")
    names = {field.name for field in dataclasses.fields(cls)}
    missing = sorted(names - document.keys() - OPTIONAL)
    if missing:
        raise CertificateError(f"This is not a {cls.__name__.lower()}: {', '.join(missing)} missing.")
    values = {name: document[name] for name in names & document.keys()}
    try:
        values |= _checked(values)
        values["model"] = ModelReference(**values["model"])
        for name, text in dataclasses.asdict(values["model"]).items():
            _expect(isinstance(text, str), f"model.{name}", "is a text", text)
        if "members" in values:
            values["members"] = tuple(_read_member(member) for member in values["members"])
        return cls(**values)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise CertificateError(f"This {cls.__name__.lower()} is malformed: {error}.") from error


def _read_member(document: Mapping[str, Any]) -> MemberVotes:
    values = _renamed(document, "weight", "beta")
    return MemberVotes(**{**values, **_checked(values)})


def _renamed(document: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    """A document whose field had another name in files of 0.1, which stay readable."""
    if new in document or old not in document:
        return dict(document)
    return {new if name == old else name: value for name, value in document.items()}


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values whose types have to be settled, each checked: TypeError where one is something else.

    A bool is an int to Python, and a whole float equals an int; here each field has one type, so that no two documents
    that differ make the same certificate. Only the numbers that are measured may be written as 1 or as 1.0.
    """
    found: dict[str, Any] = {"counts": tuple(_count(f"counts[{i}]", one) for i, one in enumerate(values["counts"]))}
    found |= {name: _count(name, values[name]) for name in _WHOLE & values.keys()}
    found |= {name: _real(name, values[name]) for name in (_REAL | {"beta"}) & values.keys()}
    for name in _REAL_OR_NULL & values.keys():
        found[name] = None if values[name] is None else _real(name, values[name])
    for name in _TEXT & values.keys():
        _expect(isinstance(values[name], str), name, "is a text", values[name])
    for name in {"class_name"} & values.keys():
        _expect(values[name] is None or isinstance(values[name], str), name, "is a text or null", values[name])
    for name in {"abstained"} & values.keys():
        _expect(isinstance(values[name], bool), name, "is true or false", values[name])
    if values["label"] is not None:
        found["label"] = _count("label", values["label"])
    return found


def _count(name: str, value: Any) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    _expect(whole, name, "is a whole number", value)
    _expect(value < _LARGEST.get(name, 2**63), name, f"is at most {_LARGEST.get(name, 2**63) - 1}", value)
    return int(value)


def _real(name: str, value: Any) -> float:
    _expect(isinstance(value, int | float) and not isinstance(value, bool), name, "is a number", value)
    # NaN is not below either, and a comparison cannot overflow, as the conversion of a whole number can.
    _expect(abs(value) < 1e300, name, "is finite", value)
    return float(value)


def _expect(condition: bool, name: str, rule: str, found: Any) -> None:
    if not condition:
        raise TypeError(f"{name} {rule}, found {short(found)}")
