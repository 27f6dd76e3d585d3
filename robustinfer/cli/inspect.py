"""`robust inspect`: what is inside a model file."""

import dataclasses
from typing import TYPE_CHECKING, Any

from .console import print_json, print_text
from .options import CardFile, Json, Model

if TYPE_CHECKING:
    from ..engines.inspection import Inspection

__all__ = ["command", "members_asked"]


def command(model: Model, card: CardFile = None, json: Json = False) -> None:
    """Print the card of a model file, its digest, its operators and its cost.

    [bold]robust inspect quickstart/digits.onnx[/bold]
    """
    from ..card import Card
    from ..engines.inspection import inspect_model

    inspection = inspect_model(model)
    if card is not None:
        inspection = dataclasses.replace(inspection, card=Card.read(card))
    if json:
        print_json(inspection.to_json())
        return
    for label, value in _rows(inspection):
        print_text(f"{label:<12} {value}")


def _rows(inspection: "Inspection") -> list[tuple[str, str]]:
    rows = [
        ("file", f"{inspection.path} ({inspection.format}, {inspection.bytes:,} bytes)"),
        ("digest", inspection.digest),
    ]
    card = inspection.card
    if card is None:
        rows.append(("card", "none: `robust wrap` makes it a model file"))
    else:
        rows += _card_rows(card)
    if inspection.opset is not None:
        rows.append(("opset", str(inspection.opset)))
    for label, operators in (("operators", inspection.operators), ("in branches", inspection.sampler_operators)):
        if operators:
            rows.append((label, ", ".join(f"{count} {kind}" for kind, count in operators.items())))
    if inspection.parameters is not None:
        rows.append(("parameters", f"{inspection.parameters:,}"))
    if inspection.flops is not None:
        rows.append(("cost", f"{inspection.flops / 1e6:,.2f} MFLOP per sample"))
        if inspection.expected_flops not in (None, inspection.flops):
            rows[-1] = (
                "cost",
                f"{inspection.expected_flops / 1e6:,.2f} MFLOP per sample on average, at most "
                f"{inspection.flops / 1e6:,.2f}",
            )
    if inspection.operators is None:
        rows.append(("graph", 'not read: pip install "robustinfer[train]" for operators and cost'))
    return rows


def _card_rows(card: Any) -> list[tuple[str, str]]:
    spec = card.input
    resize = "other sizes are refused" if spec.resize == "refuse" else f"other sizes are resized ({spec.resize})"
    if spec.crop is not None:
        resize = f"other sizes are resized ({spec.resize}), and the inner {spec.crop:g} of each side is kept"
    rows = [
        ("model", f"{card.name}, version {card.version}, licence {card.license or 'not stated'}"),
        ("input", f"{spec.channels} x {spec.height} x {spec.width}, pixels in [0,1]; {resize}"),
        ("kind", "members that vote" if card.kind == "votes" else "ensemble scores"),
        ("classes", f"{len(card.classes)}: {_shortened(card.classes)}"),
        ("sigma", _sigma(card)),
        ("threat", "none" if card.threat is None else f"{card.threat.norm}, delta {card.threat.delta:g}"),
        ("sampler", ", ".join(card.sampler) or "none"),
    ]
    if card.cascade is not None:
        rows.append(("cascade", _cascade(card.cascade)))
    rows += [(f"member {member.stage}", f"{member.architecture}, beta {member.beta:g}") for member in card.members]
    for label, facts in (("training", card.training), ("evaluation", card.evaluation), ("parity", card.parity)):
        plain = {key: value for key, value in facts.items() if not isinstance(value, dict | list)}
        if plain:
            rows.append((label, ", ".join(f"{key} {value}" for key, value in plain.items())))
    return rows


def _cascade(cascade: Any) -> str:
    """The rule in words, and what the fit found."""
    order = ", ".join(map(str, cascade["order"]))
    if cascade["rule"] == "consensus":
        rule = f"stages {order}; a sample leaves after {cascade['consensus']} members that agree"
    else:
        limits = ", ".join("never" if limit is None else f"{limit:.4g}" for limit in cascade["thresholds"])
        rule = f"stages {order}; a sample leaves at margins above {limits}"
    if "members_asked" not in cascade:
        return rule
    return f"{rule}; {members_asked(cascade)}, {cascade['agreement']:.1%} of labels as the plain ensemble's"


def members_asked(cascade: Any) -> str:
    """How many members are asked per sample, in words."""
    return f"{cascade['members_asked']:.2f} of {len(cascade['order'])} members asked per sample"


def _sigma(card: Any) -> str:
    if card.sigma is None:
        return "none: not trained for smoothing"
    return f"{card.sigma:g}" if card.noise_trained else f"{card.sigma:g}, chosen when wrapped: not trained with noise"


def _shortened(names: tuple[str, ...], most: int = 12) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
