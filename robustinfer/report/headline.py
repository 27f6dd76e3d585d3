"""The headline of a report: its figures in one sentence, and again one by one."""

import html
from collections.abc import Mapping
from typing import Any

from ..smoothing.bounds import format_radius
from ..summary import Summary
from .figures import percent
from .material import Material

__all__ = ["attack_words", "headline"]


def headline(material: Material) -> str:
    """The figures of the report in one sentence, and again one by one."""
    boxes: list[tuple[str, str]] = []
    words = []
    if material.sets:
        summary = material.sets[0].summary
        chosen = _at(summary, _typical_radius(material))
        correct = summary.accuracies[0]
        words.append(
            f"On {summary.images} test images of {html.escape(summary.data)}, {_members(material)} gives "
            f"{percent(correct.accuracy)} the right label with a certificate, and proves it against every change of "
            f"l2 length {chosen.radius:g} for {percent(chosen.accuracy)}"
        )
        boxes += [
            (percent(correct.accuracy), "certified correct at some radius"),
            (percent(chosen.accuracy), f"certified correct at radius {chosen.radius:g}"),
            (format_radius(summary.acr), "average certified radius, l2, pixels in [0,1]"),
        ]
    if material.runs and material.runs[0].attack is not None:
        attack = material.runs[0].attack
        row = _whole(attack)
        if row["robust"] is not None:
            rate = percent(row["robust"]["rate"])
            words.append(
                f"under a {html.escape(attack_words(attack))}, {rate} of {attack['images']} test images keep "
                "the right label"
            )
            boxes.append((rate, f"right under attack, {attack['norm']} length {attack['delta']:g}"))
    if material.runs:
        seconds = sum(stage["seconds"] for stage in material.runs[0].stages)
        boxes.append((f"{seconds:.0f} s", f"training, {len(material.runs[0].stages)} stages"))
    sentence = "; ".join(words) or "No evaluation and no certificates yet"
    tiles = "".join(f"<div><b>{figure}</b><span>{html.escape(label)}</span></div>" for figure, label in boxes)
    return f'<p class="headline">{sentence[0].upper() + sentence[1:]}.</p><div class="figures">{tiles}</div>'


def _members(material: Material) -> str:
    if material.runs:
        return f"a boosted ensemble of {len(material.runs[0].stages)} members"
    return html.escape(material.sets[0].name)


def _typical_radius(material: Material) -> float:
    """The radius the model was trained to resist, if the table has it, else the median of the table."""
    radii = [row.radius for row in material.sets[0].summary.accuracies]
    wanted = material.runs[0].recipe["delta"] if material.runs and material.runs[0].recipe["norm"] == "l2" else None
    return float(wanted) if wanted in radii else radii[len(radii) // 2]


def _at(summary: Summary, radius: float) -> Any:
    return next(row for row in summary.accuracies if row.radius == radius)


def _whole(attack: Mapping[str, Any]) -> Any:
    """The row of all stages."""
    return max((row for row in attack["rows"] if row["stages"] is not None), key=lambda row: row["stages"])


def attack_words(attack: Mapping[str, Any]) -> str:
    """An attack in words: "20-step gradient attack with 10 random starts of l2 length 0.5"."""
    settings = attack["settings"]
    if attack["attack"].startswith("pgd"):
        starts = f" with {settings['restarts']} random starts" if settings["restarts"] > 1 else ""
        return f"{settings['steps']}-step gradient attack{starts} of {attack['norm']} length {attack['delta']:g}"
    return f"{attack['attack']} attack of {attack['norm']} length {attack['delta']:g}"
