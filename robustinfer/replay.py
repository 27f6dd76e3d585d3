"""Replaying a certificate: the same seed and the same model must cast the same votes."""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .certificate import METHOD, VOTES_METHOD, Certificate, MemberVotes
from .errors import CertificateError, DigestError
from .images import image_digest
from .requests import Question, Request
from .smoothing.estimates import Votes
from .smoothing.procedures import MemberOutcome, Outcome

if TYPE_CHECKING:
    from .predictor import Predictor

__all__ = ["Replay", "replay"]


@dataclass(frozen=True)
class Replay:
    """What came out when the samples of a certificate were drawn again.

    `ok`: the votes, the label and the radius come out as they stand in the certificate. `flips`: samples whose vote
    changed, at least (half the sum of the differences of the counts); a different backend may flip near-ties.
    """

    ok: bool
    flips: int
    label: int | None
    radius: float
    counts: tuple[int, ...]
    invalid: int
    same_model: bool
    reason: str

    def to_json(self) -> dict[str, Any]:
        """The replay as a JSON object."""
        return dataclasses.asdict(self)


def replay(predictor: "Predictor", certificate: Certificate, image: npt.ArrayLike, *, other_model: bool) -> Replay:
    """Run the certificate's procedure on its own noise, and compare."""
    same_model = certificate.model.digest == predictor.digest
    if not same_model and not other_model:
        raise DigestError(
            f"The certificate was made by a model with the digest {certificate.model.digest}, this one has "
            f"{predictor.digest}: use that model, or allow another file of the same ensemble."
        )
    if certificate.samples_used > certificate.n0 + certificate.n:
        raise CertificateError(
            f"The certificate claims {certificate.samples_used} samples, more than the {certificate.n0} + "
            f"{certificate.n} it was allowed."
        )
    question = _question(predictor, certificate, image)
    outcome = _rerun(predictor, question, certificate)
    counts = outcome.counts
    if len(outcome.members) != len(certificate.members):
        raise CertificateError(
            f"The certificate has {len(certificate.members)} voting members, the model {len(outcome.members)}."
        )
    members = [_flips(one.counts, other) for one, other in zip(outcome.members, certificate.members, strict=True)]
    flips = max([_flips(counts, certificate), *members])
    reason = _difference(predictor, certificate, outcome, flips)
    return Replay(
        ok=not reason,
        flips=flips,
        label=outcome.label,
        radius=outcome.radius,
        counts=tuple(int(votes) for votes in counts[:-1]),
        invalid=int(counts[-1]),
        same_model=same_model,
        reason=reason or "the same votes, label and radius came out again",
    )


def _flips(counts: Votes, certificate: Certificate | MemberVotes) -> int:
    """The least number of samples whose votes changed."""
    claimed = np.array([*certificate.counts, certificate.invalid])
    if len(counts) != len(claimed):
        raise CertificateError(f"The certificate counts {len(claimed) - 1} classes, the model has {len(counts) - 1}.")
    return (int(np.abs(counts - claimed).sum()) + 1) // 2


def _question(predictor: "Predictor", certificate: Certificate, image: npt.ArrayLike) -> Question:
    kind = certificate.noise.rpartition("/")[2]
    wanted = {certificate.procedure: certificate.requested} if certificate.procedure != "fixed" else {}
    if certificate.method not in {METHOD, VOTES_METHOD}:
        raise CertificateError(
            f"This robustinfer replays the methods {METHOD} and {VOTES_METHOD}; the certificate has the method "
            f"{certificate.method!r}."
        )
    request = Request(
        image=image,
        n=certificate.n,
        n0=certificate.n0 if certificate.n0 or certificate.procedure == "fixed" else None,
        alpha=certificate.alpha,
        bound=certificate.bound,
        sigma=certificate.sigma,
        noise=kind,  # type: ignore[arg-type]  # checked by `ask`
        seed=certificate.seed,
        members=certificate.method == VOTES_METHOD,
        **wanted,  # type: ignore[arg-type]
    )
    question = request.ask(predictor.card)
    if image_digest(question.image) != certificate.image:
        raise CertificateError(
            f"This is not the image of the certificate, whose pixels have the digest {certificate.image}."
        )
    return question


def _rerun(predictor: "Predictor", question: Question, certificate: Certificate) -> Outcome:
    """The outcome on exactly the certificate's samples.

    A clock or a person may have ended the original, and a flipped near-tie may make the procedure want more or fewer
    samples than it did then; so it is stopped where the certificate was, and given what the certificate used.
    """
    limit, position = certificate.samples_used, 0
    procedure = question.begin()
    wanted = next(procedure)
    while True:
        answer: Votes | str = certificate.stopped
        if position + wanted <= limit:
            answer = _votes(predictor, question, position, wanted)
            position += wanted
        try:
            wanted = procedure.send(answer)
        except StopIteration as end:
            outcome: Outcome = end.value
            break
    if position < limit:
        return _with_more(outcome, _votes(predictor, question, position, limit - position))
    return outcome


def _with_more(outcome: Outcome, rest: Votes) -> Outcome:
    """The outcome with the votes of samples that its procedure did not ask for, so that all votes can be compared."""
    if not outcome.members:
        return dataclasses.replace(outcome, counts=outcome.counts + rest)
    members = tuple(
        dataclasses.replace(member, counts=member.counts + row)
        for member, row in zip(outcome.members, rest[:-1], strict=True)
    )
    return dataclasses.replace(outcome, counts=outcome.counts + rest[-1], members=members)


def _votes(predictor: "Predictor", question: Question, first: int, count: int) -> Votes:
    tally = question.tally
    votes = tally.empty()
    buffer = np.empty((min(predictor.batch, count), *question.image.shape), dtype=np.float32)
    for start in range(first, first + count, len(buffer)):
        out = buffer[: min(len(buffer), first + count - start)]
        question.draw(start, out)
        votes += tally.count(tally.scores(predictor.engine, out))
    return votes


def _difference(predictor: "Predictor", certificate: Certificate, outcome: Outcome, flips: int) -> str:
    """The first thing in which the certificate claims something else than what its samples prove, or nothing."""
    if flips:
        return f"{flips} of {certificate.samples_used - certificate.n0} votes came out differently"
    if outcome.label != certificate.label:
        return f"the votes prove the label {outcome.label}, the certificate says {certificate.label}"
    if certificate.radius > outcome.radius:
        return f"the votes prove a radius of {outcome.radius}, the certificate says {certificate.radius}"
    name = None if outcome.label is None else predictor.card.classes[outcome.label]
    proven = {
        "class_name": (certificate.class_name, name),
        "stopped": (certificate.stopped, outcome.stopped),
        "looks": (certificate.looks, outcome.looks),
        "p_lower": (certificate.p_lower, outcome.p_lower),
        "p_upper_runner_up": (certificate.p_upper_runner_up, outcome.p_upper),
    }
    pairs = enumerate(zip(certificate.members, outcome.members, strict=True), start=1)
    proven |= {f"{field} of member {number}": both for number, pair in pairs for field, both in _of_member(*pair)}
    for field, (claimed, found) in proven.items():
        if not _equal(claimed, found):
            return f"the votes prove {field} = {found!r}, the certificate says {claimed!r}"
    return ""


def _of_member(claimed: MemberVotes, found: MemberOutcome) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """What the certificate claims about a member, and what its votes prove."""
    yield "beta", (claimed.beta, found.beta)
    yield "label", (claimed.label, found.label)
    yield "radius", (claimed.radius, found.radius)
    yield "p_lower", (claimed.p_lower, found.p_lower)
    yield "p_upper_runner_up", (claimed.p_upper_runner_up, found.p_upper)


def _equal(claimed: Any, found: Any) -> bool:
    """Equal, but for digits in which versions of scipy differ."""
    if isinstance(claimed, float) and isinstance(found, float):
        return math.isclose(claimed, found, rel_tol=0.0, abs_tol=1e-9)
    return bool(claimed == found)
