"""Tables of the scripts on real data: rows of JSON become Markdown."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from robustinfer.smoothing.bounds import format_radius

__all__ = [
    "budget_table",
    "digits_table",
    "forms_table",
    "grouped",
    "l2_table",
    "linf_table",
    "markdown",
    "time_table",
    "votes_table",
]

# Shares of votes for the true label that divide images, from those that are lost to those that are certain.
VOTES = (0.1, 0.5, 0.9, 0.99, 0.999)

Rows = Mapping[str, Mapping[str, Any]]


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *lines)) + "\n"


def grouped(rows: Rows, *keys: str) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    """Rows that agree in these keys, in the order they come."""
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows.values():
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


def rate(found: Sequence[Mapping[str, Any]], part: str, attack: str) -> str:
    """The mean of a rate over seeds in per cent, with the interval of a single one or the range of several."""
    rates = [row[part][attack] for row in found if attack in row.get(part, {})]
    if not rates:
        return ""
    values = [100 * item["rate"] for item in rates]
    if len(values) > 1:
        return f"{fmean(values):.1f} ({min(values):.1f} to {max(values):.1f})"
    return f"{values[0]:.1f} [{100 * rates[0]['low']:.1f}, {100 * rates[0]['high']:.1f}]"


def cost(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Clock and processor seconds of the training, and its epochs, as means over seeds."""
    epochs = sum(stage["epochs"] for stage in found[0]["stages"])
    spent = [fmean(row["training"][key] for row in found) for key in ("seconds", "cpu_seconds")]
    return [str(epochs), *(f"{value:.0f}" for value in spent)]


def linf_table(rows: Rows) -> str:
    """One line per way of training: cost, clean and attacked accuracy, and the last member alone."""
    header = ["training", "epochs", "clock s", "CPU s", "clean %", "PGD-20 (10 restarts) %", "APGD-T %"]
    whole = any("autoattack" in row["ensemble"] for row in rows.values())
    header += ["AutoAttack %"] if whole else []
    header += ["last member: PGD-20 %", "last member: APGD-T %", "betas"]
    attacks = ("clean", "pgd-20x10", "apgd-t", *(("autoattack",) if whole else ()))
    lines = []
    for found in grouped(rows, "name").values():
        rates = [rate(found, "ensemble", attack) for attack in attacks]
        last = [rate(found, "last_member", attack) for attack in ("pgd-20x10", "apgd-t")]
        betas = ", ".join(f"{beta:.2f}" for beta in found[0]["stages"][-1]["betas"])
        lines.append([found[0]["label"], *cost(found), *rates, *last, betas])
    return markdown(header, lines)


def l2_table(rows: Rows, n: str) -> str:
    """One line per way of training: cost, ACR by both bounds, certified accuracy at steps of a quarter."""
    certified = [row for row in rows.values() if n in row]
    radii = [radius for radius in certified[0][n]["accuracy"] if any(row[n]["accuracy"][radius] for row in certified)]
    header = ["training", "epochs", "train CPU s", "certify CPU s", "ACR", "95 % interval", "ACR top-class"]
    lines = []
    for found in grouped({key: row for key, row in rows.items() if n in row}, "name").values():
        results = [row[n] for row in found]
        epochs, _, spent = cost(found)
        low, high = (fmean(item["acr_interval"][side] for item in results) for side in (0, 1))
        means = [format_radius(fmean(item[key] for item in results)) for key in ("acr", "acr_top_class")]
        seconds = f"{fmean(item['cpu_seconds'] for item in results):.0f}"
        accuracy = [f"{100 * fmean(item['accuracy'][radius] for item in results):.1f}" for radius in radii]
        interval = f"{format_radius(low)} to {format_radius(high)}"
        lines.append([found[0]["label"], epochs, spent, seconds, means[0], interval, means[1], *accuracy])
    return markdown([*header, *(f"{radius}" for radius in radii)], lines)


def votes_table(rows: Rows, n: str) -> str:
    """How the share of votes for the true label, p_A, is spread over the images: per cent of them in each range."""
    ranges = list(pairwise((0.0, *VOTES, 1.0)))
    lines = []
    for found in grouped(rows, "name").values():
        shares = [votes / row[n]["n"] for row in found for votes in row[n]["votes"]]
        parts = [fmean(low <= share < high for share in shares) for low, high in ranges]
        parts.append(fmean(share == 1 for share in shares))
        lines.append([found[0]["label"], *(f"{100 * part:.1f}" for part in parts)])
    words = [f"{low:g} to {high:g}" if low else f"p_A below {high:g}" for low, high in ranges]
    return markdown(["training", *words, "all votes"], lines)


def forms_table(rows: Rows) -> str:
    """Forms of boosting by their average certified radius on held-out images, best first."""
    lines = []
    groups = grouped(rows, "name").values()
    for found in sorted(groups, key=lambda found: -fmean(row["acr"] for row in found)):
        last = [row["last_member_acr"] for row in found if "last_member_acr" in row]
        betas = ", ".join(f"{beta:.2f}" for beta in found[0]["stages"][-1]["betas"])
        acr = format_radius(fmean(row["acr"] for row in found))
        epochs, _, spent = cost(found)
        seen = [row["training_acr"] for row in found if "training_acr" in row]
        means = [format_radius(fmean(values)) if values else "" for values in (seen, last)]
        lines.append([found[0]["label"], epochs, spent, acr, *means, betas])
    titles = ["training", "epochs", "train CPU s", "ACR", "training images: ACR", "last member: ACR", "betas"]
    return markdown(titles, lines)


def time_table(rows: Rows, levels: Sequence[int]) -> str:
    """Processor seconds until a held-out robust accuracy was first reached: the question of the paper's figure 1."""
    lines = []
    for (label,), found in grouped(rows, "label").items():
        reached = [[_first(row, level / 100) for row in found] for level in levels]
        lines.append([label, *(_mean(times, ".0f") for times in reached)])
    return markdown(["training", *(f"{level} %" for level in levels)], lines)


def _first(row: Mapping[str, Any], level: float) -> float | None:
    epochs = row["training"]["epochs"]
    return next((epoch["cpu_seconds"] for epoch in epochs if epoch["robust_accuracy"] >= level), None)


def budget_table(rows: Rows, budgets: Sequence[int]) -> str:
    """The last held-out robust accuracy within so many processor seconds: the question of the paper's figure 2."""
    lines = []
    for (label,), found in grouped(rows, "label").items():
        accuracies = [[_within(row, budget) for row in found] for budget in budgets]
        lines.append([label, *(_mean(values, ".1f") for values in accuracies)])
    return markdown(["training", *(f"{budget} s" for budget in budgets)], lines)


def _within(row: Mapping[str, Any], budget: float) -> float | None:
    done = [epoch["robust_accuracy"] for epoch in row["training"]["epochs"] if epoch["cpu_seconds"] <= budget]
    return 100 * done[-1] if done else None


def _mean(values: Sequence[float | None], form: str) -> str:
    """The mean over seeds, if every one of them has a value."""
    known = [value for value in values if value is not None]
    return f"{fmean(known):{form}}" if len(known) == len(values) else ""


def digits_table(rows: Rows) -> str:
    """Candidates for the digits recipes by their robust accuracy on held-out images, best first, mean over seeds."""
    lines = []
    groups = grouped(rows, "name").values()
    for found in sorted(groups, key=lambda found: -fmean(row["robust"]["rate"] for row in found)):
        parts = [[100 * row[part]["rate"] for row in found if part in row] for part in ("robust", "last_member")]
        shown = [f"{fmean(values):.1f} ({min(values):.1f} to {max(values):.1f})" if values else "" for values in parts]
        epochs, _, spent = cost(found)
        edges = [stage["edge"] for row in found for stage in row["stages"][1:]]
        lines.append([found[0]["label"], epochs, spent, *shown, f"{min(edges):.2f}" if edges else "", str(len(found))])
    header = ["training", "epochs", "train CPU s", "robust %", "last member: robust %", "smallest later edge", "seeds"]
    return markdown(header, lines)
