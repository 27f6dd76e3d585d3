"""Tables of a report that say where a model is weak and how it came about: classes, confusions, votes, the budget."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from ..certificate_file import Entry
from ..smoothing.bounds import format_radius
from ..summary import percent
from .material import Material

__all__ = ["budget_table", "class_table", "confusion_table", "votes_table"]

_CLASSES = 50  # rows of the table of classes
_CONFUSIONS = 10
# Shares of votes for the true label that divide the images, from those that are lost to those that are certain.
_SHARES = (0.1, 0.5, 0.9, 0.99, 0.999)


def class_table(material: Material) -> dict[str, Any] | None:
    """Certified accuracy per class of the model the report is about, the lowest first."""
    summary = material.sets[0].summary
    if len(summary.classes) < 2:
        return None
    middle = len(summary.accuracies) // 2
    ordered = sorted(summary.classes, key=lambda found: (found.accuracies[0].accuracy, found.acr))
    rows = []
    for found in ordered[:_CLASSES]:
        name = material.classes[found.label] if found.label < len(material.classes) else found.name
        chosen = (found.accuracies[0], found.accuracies[middle])
        shares = [
            f"{percent(row.accuracy)} ({percent(row.low)} to {percent(row.high, failure=True)})" for row in chosen
        ]
        rows.append([name, str(found.images), *shares, format_radius(found.acr)])
    radii = [f"at radius {summary.accuracies[place].radius:g}" for place in (0, middle)]
    return {
        "head": ["class", "images", *radii, "average radius"],
        "rows": rows,
        "left_out": len(ordered) - len(rows),
        "mean": percent(summary.class_mean),
        "radius": f"{summary.accuracies[0].radius:g}",
    }


def confusion_table(material: Material) -> dict[str, Any] | None:
    """Which class is most often taken for which, by the votes; how many of these have a certificate that is wrong.

    An image counts if another class than its own got the most votes, whether it was certified or not.
    """
    summary = material.sets[0].summary
    images = {found.label: found.images for found in summary.classes}
    names = {found.label: found.name for found in summary.classes} | dict(enumerate(material.classes))
    pairs: Counter[tuple[int, int]] = Counter()
    certified: Counter[tuple[int, int]] = Counter()
    for entry in material.sets[0].entries:
        counts = entry.certificate.counts
        taken = max(range(len(counts)), key=counts.__getitem__, default=entry.truth)
        if taken != entry.truth and counts[taken] > 0:
            pairs[entry.truth, taken] += 1
            certified[entry.truth, taken] += entry.certificate.label == taken
    if not pairs:
        return None
    ordered = sorted(pairs, key=lambda pair: (-pairs[pair], -certified[pair], pair))
    rows = [
        [names[pair[0]], names.get(pair[1], str(pair[1])), f"{pairs[pair]} of {images[pair[0]]}", str(certified[pair])]
        for pair in ordered[:_CONFUSIONS]
    ]
    return {
        "head": ["class", "taken for", "images of the class", "with a certificate"],
        "rows": rows,
        "images": sum(pairs.values()),
        "pairs": len(pairs),
    }


def votes_table(material: Material) -> dict[str, Any]:
    """How the votes for the true label are spread over the images: what one average radius does not say."""
    spread = [[_share_of(entry) for entry in found.entries] for found in material.sets]
    rows = []
    for low, high in pairwise((0.0, *_SHARES, 1.0)):  # from low on, below high
        words = f"{low:g} to {high:g}" if low else f"below {high:g}"
        rows.append([words, *(str(sum(low <= share < high for share in shares)) for shares in spread)])
    rows.append(["all votes", *(str(sum(share == 1 for share in shares)) for shares in spread)])
    return {"head": ["share of the votes", *(f"images, {found.name}" for found in material.sets)], "rows": rows}


def _share_of(entry: Entry) -> float:
    counts, votes = entry.certificate.counts, sum(entry.certificate.counts) + entry.certificate.invalid
    return counts[entry.truth] / votes if votes and entry.truth < len(counts) else 0.0


def budget_table(budget: Mapping[str, Any]) -> dict[str, Any] | None:
    """Each slice of a budget: what it was spent on, what held-out images said of it, and what was decided."""
    decisions = budget.get("decisions", [])
    if not decisions:
        return None
    amount, unit = float(budget["budget"]["amount"]), budget["budget"]["unit"]
    rules = budget["rules"]
    return {
        "amount": _amount(amount, unit),
        "spent": percent(min(1.0, decisions[-1]["spent"] / amount)),
        "parts": len({decision["part"] for decision in decisions if decision["deployed"]}),
        "images": next((found["images"] for found in map(_evidence, decisions) if found), 0),
        "pays": f"{rules['pays']:g}",
        "joins": f"{rules['joins']:g}",
        "head": ["spent", "on", "steps", "loss", "gain of the slice", "gain of the ensemble", "kept", "next"],
        "rows": list(_decision_rows(decisions, amount)),
    }


def _amount(amount: float, unit: str) -> str:
    return f"{amount:.0f} seconds" if unit == "seconds" else f"{amount:.3g} operations"


def _evidence(decision: Mapping[str, Any]) -> dict[str, Any]:
    return decision["slice"] or decision["ensemble"] or {}


def _decision_rows(decisions: list[dict[str, Any]], amount: float) -> Iterator[list[str]]:
    for decision in decisions:
        evidence = _evidence(decision)
        yield [
            percent(decision["spent"] / amount),
            f"{decision['kind']} {decision['part']}",
            str(decision["steps"]),
            f"{evidence['after']:.4f}" if evidence else "",
            *(_gain(decision[key]) for key in ("slice", "ensemble")),
            "yes" if decision["deployed"] else "no",
            decision["next"],
        ]


def _gain(evidence: Mapping[str, float] | None) -> str:
    return "" if evidence is None else f"{evidence['difference']:+.4f} ± {evidence['standard_error']:.4f}"
