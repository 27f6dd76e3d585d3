"""Outcomes become answers: the one place where the fields of a prediction and of a certificate are filled in."""

from typing import TYPE_CHECKING

from .certificate import Certificate, MemberVotes, Prediction
from .images import image_digest
from .questions import Question
from .smoothing.bounds import radius_linf
from .smoothing.procedures import MemberOutcome, Outcome

if TYPE_CHECKING:
    from .predictor import Predictor

__all__ = ["certificate_of", "prediction_of"]


def prediction_of(predictor: "Predictor", question: Question, outcome: Outcome, seconds: float) -> Prediction:
    """The prediction that an outcome is."""
    return Prediction(
        label=outcome.label,
        class_name=None if outcome.label is None else predictor.card.classes[outcome.label],
        abstained=outcome.label is None,
        counts=tuple(int(votes) for votes in outcome.counts[:-1]),
        invalid=int(outcome.counts[-1]),
        n=question.n,
        samples_used=int(outcome.counts.sum()),
        alpha=question.alpha,
        sigma=question.smoothing.sigma,
        noise=question.noise,
        seed=question.seed,
        stopped=outcome.stopped,
        model=predictor.model,
        seconds=round(seconds, 6),
        seed_origin=question.seed_origin,
    )


def certificate_of(predictor: "Predictor", question: Question, outcome: Outcome, seconds: float) -> Certificate:
    """The certificate that an outcome is. Verification makes it again and compares, so every field is checked."""
    return Certificate(
        label=outcome.label,
        class_name=None if outcome.label is None else predictor.card.classes[outcome.label],
        abstained=outcome.label is None,
        radius=outcome.radius,
        norm="l2",
        method=question.method,
        bound=question.smoothing.bound,
        procedure=question.procedure,
        noise=question.noise,
        sigma=question.smoothing.sigma,
        alpha=question.alpha,
        n=question.n,
        n0=outcome.selection,
        samples_used=outcome.selection + int(outcome.counts.sum()),
        looks=outcome.looks,
        p_lower=outcome.p_lower,
        p_upper_runner_up=outcome.p_upper,
        counts=tuple(int(votes) for votes in outcome.counts[:-1]),
        invalid=int(outcome.counts[-1]),
        seed=question.seed,
        stopped=outcome.stopped,
        requested=question.requested,
        image=image_digest(question.image),
        model=predictor.model,
        seconds=round(seconds, 6),
        members=tuple(_member_votes(member) for member in outcome.members),
        seed_origin=question.seed_origin,
        radius_linf=radius_linf(outcome.radius, question.image.size),
        rules=None if question.procedure == "fixed" or question.rules == 1 else question.rules,
        quantile=question.quantile,
    )


def _member_votes(member: MemberOutcome) -> MemberVotes:
    return MemberVotes(
        beta=member.beta,
        label=member.label,
        radius=member.radius,
        p_lower=member.p_lower,
        p_upper_runner_up=member.p_upper,
        counts=tuple(int(votes) for votes in member.counts[:-1]),
        invalid=int(member.counts[-1]),
    )
