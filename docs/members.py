"""The verdict and the picture on members in docs/choosing.md, from the records of benchmarks; `make docs` calls this.

An ensemble is compared with the best single network, a member's size or wider, whose training cost at most a tenth more
processor seconds than its own. The difference is that of the average certified radius over the same images, with its
standard error, or that of the accuracy under PGD-20; two accuracies differ if their 95 % intervals do not overlap.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.lib.noise import difference
from benchmarks.lib.tables import grouped
from benchmarks.lib.verdicts import word
from robustinfer.files import replacing

__all__ = ["Comparison", "comparisons", "draw", "under_noise", "verdict"]

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
RECORDS = {
    "l2_mnist": "MNIST",
    "l2_published": "MNIST",
    "l2_long": "MNIST",
    "cifar10_l2": "CIFAR-10",
    "cifar10_fast": "CIFAR-10",
    "gtsrb_l2": "traffic signs",
    "linf_mnist": "MNIST",
    "linf_full": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar10_linf": "CIFAR-10",
}
ENSEMBLES = {"boosted": "boosted", "independent": "trained apart"}
ATTACK = "pgd-20x10"
DEARER = 1.1  # a rival may cost a little more: no two trainings cost exactly the same
MARGIN = 1.96  # standard errors
HALF_HOUR = 1800.0
MARKERS = {"MNIST": "o", "CIFAR-10": "s", "traffic signs": "^"}
COLOURS = {"boosted": "#0b6e99", "independent": "#d9730d"}

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Comparison:
    """An ensemble beside one network of its training cost; `gain` and `error` in per cent of the network's figure."""

    data: str
    norm: str
    kind: str
    members: int
    seconds: float
    gain: float
    error: float

    @property
    def outcome(self) -> str:
        """Better, worse, or neither."""
        return "neither" if abs(self.gain) < MARGIN * self.error else "better" if self.gain > 0 else "worse"


def comparisons() -> list[Comparison]:
    """The best ensemble of each kind at each sigma or radius of each record, beside its strongest rival."""
    found = []
    for record, data in RECORDS.items():
        file = RESULTS / f"{record}.json"
        rows = json.loads(file.read_text(encoding="utf-8"))["rows"].values() if file.is_file() else ()
        threats = {(row.get("sigma"), row.get("delta"), row["seed"]): None for row in rows}
        for threat in threats:
            group = [row for row in rows if (row.get("sigma"), row.get("delta"), row["seed"]) == threat]
            found += [_compared(data, *pair) for pair in _pairs(group)]
    return found


def _pairs(rows: Sequence[Row]) -> Iterator[tuple[Row, Row, str]]:
    """Ensembles and their rivals, with what both were measured by: an attack, or the n of their certificates."""
    for kind in ENSEMBLES:
        for measure in sorted({name for row in rows for name in _measures(row)}, key=len, reverse=True):
            measured = [row for row in rows if measure in _measures(row)]
            ours = [row for row in measured if row["kind"] == kind]
            rivals = [row for row in measured if row["kind"] in ("single", "wider")]
            if not ours:
                continue
            best = max(ours, key=lambda row: _figure(row, measure))
            paid = DEARER * best["training"]["cpu_seconds"]
            if affordable := [row for row in rivals if row["training"]["cpu_seconds"] <= paid]:
                yield best, max(affordable, key=lambda row: _figure(row, measure)), measure
                break  # the largest n that both have


def _measures(row: Row) -> set[str]:
    attacks = {ATTACK} if ATTACK in row.get("ensemble", {}) else set()
    return attacks | {key for key in row if key.startswith("n=")}


def _figure(row: Row, measure: str) -> float:
    return float(row["ensemble"][ATTACK]["rate"] if measure == ATTACK else row[measure]["acr"])


def _compared(data: str, ours: Row, rival: Row, measure: str) -> Comparison:
    whole = _figure(rival, measure)
    if measure == ATTACK:
        rates = [row["ensemble"][ATTACK] for row in (ours, rival)]
        error = sum(found["high"] - found["low"] for found in rates) / 2 / MARGIN  # as far as both intervals reach
        gain, norm = rates[0]["rate"] - rates[1]["rate"], "l_inf"
    else:
        radii = [row[measure]["radii"] for row in (ours, rival)]
        differences = [one - other for one, other in zip(*radii, strict=True)]
        gain, error, norm = fmean(differences), stdev(differences) / len(differences) ** 0.5, "l_2"
    spent, members = ours["training"]["cpu_seconds"], len(ours["stages"])
    return Comparison(data, norm, ours["kind"], members, spent, 100 * gain / whole, 100 * error / whole)


def verdict(found: Sequence[Comparison]) -> str:
    """How often an ensemble was better than one network of its training cost, by kind and length of the training."""
    lines = []
    for kind, words in ENSEMBLES.items():
        for short, name in ((True, "up to half an hour of one core"), (False, "longer")):
            chosen = [one for one in found if one.kind == kind and (one.seconds <= HALF_HOUR) == short]
            if chosen:
                counts = [sum(one.outcome == outcome for one in chosen) for outcome in ("better", "worse", "neither")]
                members = sorted({one.members for one in chosen})
                cost = f"{members[0]} to {members[-1]}" if len(members) > 1 else str(members[0])
                lines.append([words, name, cost, *map(str, counts), f"{fmean(one.gain for one in chosen):+.1f} %"])
    head = [
        "members",
        "training",
        "cost of an answer, times one member's",
        "better",
        "worse",
        "neither",
        "mean difference",
    ]
    return _table(head, lines)


def under_noise() -> str:
    """Each row of traffic signs beside one member of about its training cost: accuracy under noise, all images."""
    rows = json.loads((RESULTS / "gtsrb_l2.json").read_text(encoding="utf-8"))["rows"]
    lines = []
    for sigma in sorted({row["sigma"] for row in rows.values()}):
        measured = {key: row for key, row in rows.items() if row["sigma"] == sigma and "noise" in row}
        named = {name: found for (name,), found in grouped(measured, "name").items()}
        for name, found in named.items():
            share = f"{100 * fmean(row['noise']['right'] for row in found):.1f} %"
            gain = ""
            if name != "single":
                mean, error = difference(found, named["single"], "right")
                gain = f"{100 * mean:+.1f} ± {100 * error:.1f}, {word(mean, error)}"
            lines.append([f"{sigma:g}", found[0]["label"], str(len(found[0]["stages"])), str(len(found)), share, gain])
    head = ["sigma", "training", "members", "seeds", "accuracy under noise", "difference from one member, points"]
    return _table(head, lines)


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def draw(found: Sequence[Comparison], path: Path) -> None:
    """Gain over one network against the cost of the training. Opaque, so that dark pages show it, too."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained", facecolor="white")
    panels, titles = figure.subplots(1, 2), {"l_2": "certified radius", "l_inf": "accuracy under attack"}
    for axes, (norm, words) in zip(panels, titles.items(), strict=True):
        axes.axhline(0, color="black", linewidth=0.8)
        for kind, name in ENSEMBLES.items():
            for data, marker in MARKERS.items():
                chosen = [one for one in found if (one.norm, one.kind, one.data) == (norm, kind, data)]
                if chosen:
                    axes.errorbar(
                        [one.seconds for one in chosen],
                        [one.gain for one in chosen],
                        yerr=[MARGIN * one.error for one in chosen],
                        fmt=marker,
                        color=COLOURS[kind],
                        capsize=3,
                        label=f"{name}, {data}",
                    )
        axes.set(xscale="log", xlabel="processor seconds of training", title=f"{norm}: {words}")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="lower right" if norm == "l_2" else "lower left")  # where no point is
    panels[0].set_ylabel("ensemble against one network, %")
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=110, metadata={"Software": None})
