"""The headline of a report: its figures in one sentence, and again one by one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..smoothing.bounds import format_radius
from ..summary import Summary, percent
from .material import Material

__all__ = ["Box", "Headline", "attack_words", "headline"]


@dataclass(frozen=True)
class Box:
    """One figure and what it is."""

    figure: str
    label: str


@dataclass(frozen=True)
class Headline:
    """The figures of a report in one sentence, and again one by one."""

    sentence: str
    boxes: tuple[Box, ...]


def headline(material: Material) -> Headline:
    """What a hurried reader should see."""
    boxes: list[Box] = []
    words = []
    if material.sets:
        summary = material.sets[0].summary
        chosen = _at(summary, _typical_radius(material))
        correct = summary.accuracies[0]
        words.append(
            f"On {summary.images} test images of {summary.data}, {_members(material)} gives "
            f"{percent(correct.accuracy)} the right label with a certificate, and proves it against every change of "
            f"l2 length {chosen.radius:g} for {percent(chosen.accuracy)}"
        )
        boxes += [
            Box(percent(correct.accuracy), "certified correct at some radius"),
            Box(percent(chosen.accuracy), f"certified correct at radius {chosen.radius:g}"),
            Box(format_radius(summary.acr), "average certified radius, l2, pixels in [0,1]"),
        ]
    if material.runs and material.runs[0].attack is not None:
        attack = material.runs[0].attack
        row = _whole(attack)
        if row["robust"] is not None:
            rate = percent(row["robust"]["rate"])
            words.append(
                f"under a {attack_words(attack)}, {rate} of {attack['images']} test images keep the right label"
            )
            boxes.append(Box(rate, f"correct under attack, {attack['norm']} length {attack['delta']:g}"))
    if material.runs:
        run = material.runs[0]
        spent = f"{run.seconds:.0f} s" if run.seconds or not run.budget else _operations(run.budget)
        count = len(run.stages)
        boxes.append(Box(spent, f"training, {count} stage{'s' * (count != 1)}"))
    sentence = "; ".join(words) or "No evaluation and no certificates yet"
    return Headline(f"{sentence[0].upper()}{sentence[1:]}.", tuple(boxes))


def _operations(budget: Mapping[str, Any]) -> str:
    return f"{budget['decisions'][-1]['spent']:.2g} operations"


def _members(material: Material) -> str:
    """What was certified, in words: how many networks, and how they came together."""
    if not material.runs:
        return material.sets[0].name
    run = material.runs[0]
    count, booster = len(run.stages), run.recipe.get("booster", "greedy")
    if count == 1:
        return "one network"
    if booster == "minimax" or material.sets[0].entries[0].certificate.members:
        return f"an ensemble of {count} members that vote"
    if booster == "independent":
        return f"an ensemble of {count} members trained apart"
    return f"a boosted ensemble of {count} members"


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
    """An attack in words: "20-step gradient attack with 10 random restarts of l2 length 0.5"."""
    options = attack.get("options", attack.get("settings", {}))  # written as `settings` up to 0.1
    if attack["attack"].startswith("pgd"):
        starts = f" with {options['restarts']} random restarts" if options["restarts"] > 1 else ""
        return f"{options['steps']}-step gradient attack{starts} of {attack['norm']} length {attack['delta']:g}"
    return f"{attack['attack']} attack of {attack['norm']} length {attack['delta']:g}"
