"""Explanations: what an answer means to whoever reads it, in a sentence each.

A certificate is valid whatever network it is about, so nothing here changes one. It helps to see why a label is not the
expected one, or why there is none: most often because the network never saw noise when it was trained.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from .card import Card
from .certificate import Certificate, Prediction

if TYPE_CHECKING:
    from .predictor import Predictor

__all__ = ["abstention", "other_label", "plain_label", "untrained_noise"]


def untrained_noise(card: Card, sigma: float) -> str | None:
    """A warning, if the card does not say that the model was trained with noise of this sigma."""
    if card.sigma is not None and card.noise_trained:  # a request for another sigma is refused
        return None
    return (
        f"The model {card.name!r} was not trained with noise: under sigma {sigma:g} it may give other labels, or "
        "none. Certificates hold nevertheless, for the labels that it gives under noise."
    )


def plain_label(predictor: "Predictor", image: Any) -> tuple[int, str]:
    """Number and name of the label without noise, which no certificate is about."""
    label = int(np.argmax(predictor.scores(image)[0]))
    return label, predictor.card.classes[label]


def other_label(answer: Certificate | Prediction, plain: tuple[int, str]) -> str | None:
    """A remark, if the smoothed label is not the plain one."""
    if answer.abstained or answer.label == plain[0]:
        return None
    return f"without noise the model says {plain[1]}, under sigma {answer.sigma:g} it says {answer.class_name}"


def abstention(answer: Certificate | Prediction, card: Card) -> str | None:
    """Why there is no label, in a sentence; None if there is one."""
    if not answer.abstained:
        return None
    if answer.stopped == "interrupted":
        return "it was interrupted before the votes could decide"
    counts, total = np.asarray(answer.counts), sum(answer.counts) + answer.invalid
    if not total:
        return "no vote was cast"
    top, second = (int(label) for label in np.argsort(-counts, kind="stable")[:2])
    first = f"{card.classes[top]} has {counts[top]} of {total} votes under sigma {answer.sigma:g}"
    if isinstance(answer, Prediction) or answer.bound == "two-class":
        reason = f"{first} and {card.classes[second]} {counts[second]}, too close to tell which is ahead"
    else:
        reason = f"{first}, not clearly more than half"
    if answer.invalid:
        reason += f", and {answer.invalid} samples had no finite scores"
    if card.sigma is None or not card.noise_trained:
        return f"{reason}: the model was not trained with noise, so train it with noise or use a smaller sigma"
    if 2 * counts[top] > total or isinstance(answer, Prediction):
        return f"{reason}: a larger n may decide it"
    return reason
