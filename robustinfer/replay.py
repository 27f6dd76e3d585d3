"""Replaying a certificate: the same seed and the same model must give the same certificate.

A certificate is not asked about itself. Its request (image, n, n0, alpha, sigma, bound, noise, seed, procedure and what
was requested) is run again, the certificate that comes out is filled in as for any other request, and each field is
compared. A changed field therefore passes only if the changed certificate is the one that its own request gives: then
it is as true as the first one.

What a replay cannot know is in `UNPROVEN`; a signature covers it (`signing.py`).
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .answers import certificate_of
from .certificate import METHOD, OPTIONAL, VOTES_METHOD, Certificate, MemberVotes
from .errors import CertificateError, DigestError
from .images import image_digest
from .questions import Question
from .requests import Request
from .smoothing.estimates import Votes
from .smoothing.procedures import Outcome
from .smoothing.rules import EDITIONS
from .voting import votes_of

if TYPE_CHECKING:
    from .predictor import Predictor

__all__ = ["UNPROVEN", "Replay", "replay"]

UNPROVEN = frozenset({"seconds", "seed_origin"})
"""Fields that no replay can prove, and that claim nothing about the image: how long it took, who chose the seed.

Two more statements belong here. Where a clock or a person ended the sampling, the replay is stopped at the same sample:
that it was one and not the other ("deadline", "interrupted"), and how many seconds were allowed (`requested` of the
procedure deadline), is the word of whoever made the certificate.
"""

_DIGITS = 1e-9  # probabilities of different versions of scipy may differ by less than this
_INTERRUPTED = "interrupted"
_CLOCKED = ("radius", "deadline")  # the procedures that may have a deadline


@dataclass(frozen=True)
class Replay:
    """What came out when the samples of a certificate were drawn again.

    `ok`: everything in the certificate that can be proven is. `flips`: samples whose vote changed, at least (half the
    sum of the differences of the counts). `label`, `radius`, `counts` and `invalid` are those of the replay. `reason`
    says what differs.
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


def replay(
    predictor: "Predictor", certificate: Certificate, image: npt.ArrayLike, *, other_model: bool, max_flips: int = 0
) -> Replay:
    """Run the certificate's procedure on its own noise, and compare.

    Where up to `max_flips` votes differ, the certificate must be exactly what its own counts prove, and it must not
    claim more than the votes that were drawn here prove at the same alpha.
    """
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
    tape = _Tape(predictor, question)
    outcome = _run(question, certificate, tape.votes)
    counts = tape.rest(certificate.n0, certificate.samples_used)
    claimed = _claimed(certificate, question)
    flips = _flips(counts, claimed)
    found = _stated(predictor, question, outcome, certificate)
    if flips > max_flips:
        reason = f"{flips} of {certificate.samples_used - certificate.n0} votes came out differently"
    elif flips == 0:
        reason = _difference(certificate, found)
    else:
        own = _run(question, certificate, _ending_as_claimed(tape, certificate, claimed))
        reason = _difference(certificate, _stated(predictor, question, own, certificate)) or _excess(certificate, found)
    row = counts[-1] if counts.ndim > 1 else counts
    agreed = "the same votes, label and radius came out again"
    if flips:
        agreed = f"{flips} votes came out differently, which proves the same label and at least the same radius"
    return Replay(
        ok=not reason,
        flips=flips,
        label=outcome.label,
        radius=outcome.radius,
        counts=tuple(int(votes) for votes in row[:-1]),
        invalid=int(row[-1]),
        same_model=same_model,
        reason=reason or agreed,
    )


class _Tape:
    """The votes that were drawn, piece by piece, in the order of the samples."""

    def __init__(self, predictor: "Predictor", question: Question) -> None:
        self._predictor = predictor
        self._question = question
        self._pieces: dict[tuple[int, int], Votes] = {}

    def votes(self, first: int, count: int) -> Votes:
        """The votes of samples first, ..., first + count - 1."""
        if (first, count) not in self._pieces:
            engine, batch = self._predictor.engine, self._predictor.batch
            self._pieces[first, count] = votes_of(engine, self._question, first, count, batch=batch)
        return self._pieces[first, count]

    def between(self, first: int, end: int) -> Votes:
        """The votes of the pieces in this range together."""
        inside = [votes for (start, count), votes in self._pieces.items() if first <= start and start + count <= end]
        return sum(inside, start=self._question.tally.empty())

    def rest(self, first: int, end: int) -> Votes:
        """The votes of all samples from first to end, after drawing those that the procedure did not ask for."""
        drawn = max((start + count for start, count in self._pieces), default=0)
        if max(first, drawn) < end:
            self.votes(max(first, drawn), end - max(first, drawn))
        return self.between(first, end)


def _question(predictor: "Predictor", certificate: Certificate, image: npt.ArrayLike) -> Question:
    wanted = {certificate.procedure: certificate.requested} if certificate.procedure != "fixed" else {}
    if certificate.method not in {METHOD, VOTES_METHOD}:
        raise CertificateError(
            f"This robustinfer replays the methods {METHOD} and {VOTES_METHOD}; the certificate has the method "
            f"{certificate.method!r}."
        )
    if certificate.procedure not in {"fixed", "radius", "tolerance", "deadline"}:
        raise CertificateError(f"There is no procedure {certificate.procedure!r} to replay.")
    if wanted and certificate.requested is None:
        raise CertificateError(f"A certificate of the procedure {certificate.procedure} says what was requested.")
    if certificate.rules not in {None, *EDITIONS}:
        raise CertificateError(
            f"This robustinfer replays the rules {' and '.join(map(str, EDITIONS))}; the certificate was made by the "
            f"rules {certificate.rules}: use a newer version."
        )
    request = Request(
        image=image,
        n=certificate.n,
        n0=certificate.n0 if certificate.n0 or certificate.procedure == "fixed" else None,
        alpha=certificate.alpha,
        bound=certificate.bound,
        sigma=certificate.sigma,
        seed=certificate.seed,
        members=certificate.method == VOTES_METHOD,
        quantile=certificate.quantile if certificate.procedure == "tolerance" else None,
        **wanted,  # type: ignore[arg-type]
    )
    question = request.ask(predictor.card, replayed=certificate.drawn_noise, rules=certificate.rules or 1)
    if image_digest(question.image) != certificate.image:
        raise CertificateError(
            f"This is not the image of the certificate, whose pixels have the digest {certificate.image}."
        )
    return question


def _run(question: Question, certificate: Certificate, votes: Callable[[int, int], Votes]) -> Outcome:
    """The outcome of the procedure on the certificate's samples and no others.

    A clock or a person may have ended the original, and only they: a procedure that asks for more samples than the
    certificate has is told so, and its outcome says that it was stopped.
    """
    clocked = certificate.stopped == "deadline" and certificate.procedure in _CLOCKED
    word = certificate.stopped if clocked else _INTERRUPTED
    procedure, position = question.begin(), 0
    wanted = next(procedure)
    while True:
        answer: Votes | str = word
        if position + wanted <= certificate.samples_used:
            answer = votes(position, wanted)
            position += wanted
        try:
            wanted = procedure.send(answer)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome


def _ending_as_claimed(tape: _Tape, certificate: Certificate, claimed: Votes) -> Callable[[int, int], Votes]:
    """The votes of the replay, except that the last piece brings the total to the certificate's own counts."""

    def votes(first: int, count: int) -> Votes:
        if first < certificate.n0 or first + count < certificate.samples_used:
            return tape.votes(first, count)
        return claimed - tape.between(certificate.n0, first)

    return votes


def _claimed(certificate: Certificate, question: Question) -> Votes:
    """The certificate's counts in the form in which votes are tallied."""
    counted: list[MemberVotes | Certificate] = [*certificate.members, certificate]
    rows = [[*one.counts, one.invalid] for one in counted]
    empty = question.tally.empty()
    classes = question.tally.classes
    if any(len(row) != classes + 1 for row in rows):
        raise CertificateError(f"The certificate counts {len(rows[-1]) - 1} classes, the model has {classes}.")
    if empty.ndim > 1 and len(rows) != len(empty):
        raise CertificateError(f"The certificate has {len(rows) - 1} voting members, the model {len(empty) - 1}.")
    return np.array(rows if empty.ndim > 1 else rows[0], dtype=np.int64)


def _flips(counts: Votes, claimed: Votes) -> int:
    """The least number of samples whose votes changed, of the whole or of the member with the most."""
    changed = np.abs(counts - claimed).sum(axis=-1)
    return (int(changed.max()) + 1) // 2


def _stated(predictor: "Predictor", question: Question, outcome: Outcome, certificate: Certificate) -> Certificate:
    """The certificate of an outcome; its digest is that of the model that the certificate names (see `replay`)."""
    found = certificate_of(predictor, question, outcome, certificate.seconds)
    return dataclasses.replace(found, model=dataclasses.replace(found.model, digest=certificate.model.digest))


def _difference(certificate: Certificate, found: Certificate) -> str:
    """The first field in which the certificate says something else than was found, or nothing."""
    claimed, proven = dict(_flat(certificate.to_json())), dict(_flat(found.to_json()))
    for field in [*proven, *(claimed.keys() - proven.keys())]:
        if field in UNPROVEN or (field in OPTIONAL and field not in claimed):
            continue
        ours, theirs = proven.get(field), claimed.get(field)
        if not _equal(theirs, ours) or ("radius" in field and theirs != ours):
            return f"the votes prove {field} = {ours!r}, the certificate says {theirs!r}"
    return ""


def _excess(certificate: Certificate, found: Certificate) -> str:
    """What the certificate claims beyond the votes that were drawn here, or nothing. An abstention claims nothing."""
    if certificate.abstained:
        return ""
    pairs: list[tuple[str, Any, Any]] = [("", certificate, found)]
    members = zip(certificate.members, found.members, strict=True)
    pairs += [(f"members[{index}].", *pair) for index, pair in enumerate(members)]
    for prefix, one, other in pairs:
        if one.label is None:
            continue
        upper = (one.p_upper_runner_up or 0.0) >= (other.p_upper_runner_up or 0.0) - _DIGITS
        if one.label != other.label or one.radius > other.radius or one.p_lower > other.p_lower + _DIGITS or not upper:
            return (
                f"the votes drawn here prove {prefix}label = {other.label}, {prefix}radius = {other.radius}, the "
                f"certificate says {one.label} and {one.radius}"
            )
    return ""


def _flat(document: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a JSON document, by their paths."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield from _flat(value, f"{name}.{key}" if name else key)
    elif isinstance(document, list | tuple):
        yield f"{name}.length", len(document)
        for index, value in enumerate(document):
            yield from _flat(value, f"{name}[{index}]")
    else:
        yield name, document


def _equal(claimed: Any, found: Any) -> bool:
    """Equal, but for digits in which versions of scipy differ; a radius is rounded and has none of those."""
    if isinstance(claimed, float) and isinstance(found, float):
        return math.isclose(claimed, found, rel_tol=0.0, abs_tol=_DIGITS)
    return bool(claimed == found)
