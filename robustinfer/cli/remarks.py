"""Remarks on stderr about an answer that may surprise: a label that noise changed, or an abstention."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console import note

if TYPE_CHECKING:
    from ..certificate import Certificate, Prediction
    from ..predictor import Predictor

__all__ = ["remark"]


def remark(predictor: "Predictor", file: Path, image: Any, answer: "Certificate | Prediction") -> dict[str, Any]:
    """Say what is to be said about an answer, and return the label without noise, for whoever reads JSON."""
    from ..explanations import abstention, other_label, plain_label

    label = plain_label(predictor, image)
    why = abstention(answer, predictor.card)
    if why is not None:
        note(f"{file}: abstains because {why}; without noise the model says {label[1]}.")
    changed = other_label(answer, label)
    if changed is not None:
        note(f"{file}: {changed}.")
    return {"label": label[0], "class_name": label[1]}
