"""Plots of the scripts on real data."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler

from robustinfer.smoothing.bounds import format_radius

mpl.use("Agg")
from matplotlib import pyplot as plt

__all__ = [
    "plot_certified",
    "plot_cost",
    "plot_finetuning",
    "plot_operations",
    "plot_payoff",
    "plot_progress",
    "plot_steps",
]

Rows = Mapping[str, Mapping[str, Any]]

# Ten colours, then the same ten dashed: tables have up to twenty rows.
_STYLES = cycler(linestyle=["-", "--"]) * cycler(color=mpl.color_sequences["tab10"])

_LEGEND_WIDTH = 55  # characters per line: longer ones would leave the curves no room


def plot_progress(rows: Rows, path: Path, title: str) -> None:
    """Robust accuracy on held-out images against processor seconds: the question behind the paper's two figures."""
    figure, axes = _axes()
    for row in rows.values():
        epochs = row["training"]["epochs"]
        values = [100 * epoch["robust_accuracy"] for epoch in epochs]
        axes.plot([epoch["cpu_seconds"] for epoch in epochs], values, marker=".", label=row["label"])
    axes.set(xlabel="processor seconds of training", ylabel="robust accuracy on held-out images, %", title=title)
    _finish(figure, axes, path)


def plot_certified(rows: Rows, n: str, path: Path, title: str) -> None:
    """Certified accuracy against the radius."""
    figure, axes = _axes()
    for row in rows.values():
        radii = np.sort([radius for radius in row[n]["radii"] if radius > 0])
        share = 100 * (len(radii) - np.arange(len(radii))) / row[n]["images"]
        axes.step(radii, share, where="pre", label=f"{row['label']}: ACR {format_radius(row[n]['acr'])}")
    axes.set(xlabel="l_2 radius, pixels in [0,1]", ylabel="certified accuracy, %", title=title)
    _finish(figure, axes, path)


def plot_payoff(
    rows: Rows, worth: Callable[[Mapping[str, Any]], tuple[float, float, float]], path: Path, *, what: str, title: str
) -> None:
    """What a training reaches against what it costs, a line for each kind of row; `worth`: figure and interval."""
    figure, axes = _axes()
    for kind in dict.fromkeys(row["kind"] for row in rows.values()):
        own = sorted((row for row in rows.values() if row["kind"] == kind), key=_spent)
        found = [worth(row) for row in own]
        below, above = ([abs(one[side] - one[0]) for one in found] for side in (1, 2))
        values = [one[0] for one in found]
        axes.errorbar([_spent(row) for row in own], values, yerr=[below, above], marker="o", capsize=3, label=kind)
    axes.set(xscale="log", xlabel="processor seconds of training", ylabel=what, title=title)
    _finish(figure, axes, path)


def _spent(row: Mapping[str, Any]) -> float:
    return float(row["training"]["cpu_seconds"])


def plot_cost(sweeps: Mapping[str, list[Mapping[str, float]]], path: Path) -> None:
    """Seconds of a certificate, one panel for each number that grows."""
    figure, panels = plt.subplots(1, len(sweeps), figsize=(3 * len(sweeps), 3), layout="constrained", sharey=True)
    for (name, points), axes in zip(sweeps.items(), panels, strict=True):
        axes.loglog([point[name] for point in points], [point["seconds"] for point in points], marker="o")
        axes.set(xlabel="pixels a side" if name == "side" else name)
        axes.grid(alpha=0.3, which="both")
    panels[0].set(ylabel="seconds per certificate")
    _save(figure, path)


def plot_finetuning(rows: Rows, path: Path) -> None:
    """Certified accuracy against processor seconds of training, one panel for each radius."""
    figure, panels = plt.subplots(1, 3, figsize=(10, 3), layout="constrained", sharey=True)
    for radius, axes in zip((0.0, 0.1, 0.2), panels, strict=True):
        for way, style in (("fine-tuned", "-"), ("scratch", "--")):
            points = sorted((row["training"]["cpu_seconds"], row) for row in rows.values() if row["way"] == way)
            shares = [100 * float(np.mean(np.array(list(row["radii"].values())) >= radius)) for _, row in points]
            axes.plot([seconds for seconds, _ in points], shares, style, marker="o", label=way)
        axes.set(xlabel="processor seconds of training", title=f"radius {radius:g}", ylim=(0, 100))
        axes.grid(alpha=0.3)
    panels[0].set(ylabel="certified accuracy, %")
    panels[0].legend(loc="lower right")
    _save(figure, path)


def plot_operations(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str], path: Path) -> None:
    """ACR against multiply-adds of a prediction: a line for each way to train, a marker for each kind of file."""
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    markers = {"plain": "o", "int8": "s", "cascade": "^", "cascade int8": "D"}
    for number, name in enumerate(dict.fromkeys(row["name"] for row in rows)):
        own = sorted((row for row in rows if row["name"] == name), key=lambda row: float(row["macs_per_sample"]))
        costs = [row["macs_per_sample"] * row["n"] / 1e9 for row in own]
        axes.plot(costs, [row["acr"] for row in own], f"C{number}-", alpha=0.4, label=names.get(name, name))
        for cost, row in zip(costs, own, strict=True):
            axes.plot(cost, row["acr"], f"C{number}{markers[row['file']]}")
    for kind, marker in markers.items():
        axes.plot([], [], f"k{marker}", fillstyle="none", linestyle="", label=kind)
    axes.set(xscale="log", xlabel="GMAC per prediction", ylabel="average certified radius")
    _finish(figure, axes, path)


def plot_steps(steps: list[Mapping[str, Any]], path: Path) -> None:
    """Seconds per image, from the published loop to a decided radius."""
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    names, seconds = [step["step"] for step in steps], [step["seconds per image"] for step in steps]
    bars = axes.barh(names[::-1], seconds[::-1])
    axes.bar_label(bars, [f"{step['times the published loop']:.3g} times" for step in steps][::-1], padding=3)
    axes.set(xscale="log", xlabel="seconds per image")
    axes.margins(x=0.2)
    _save(figure, path)


def _axes() -> tuple[Any, Any]:
    figure, axes = plt.subplots(figsize=(10, 4), layout="constrained")
    axes.set_prop_cycle(_STYLES)
    return figure, axes


def _finish(figure: Any, axes: Any, path: Path) -> None:
    axes.grid(alpha=0.3)
    lines, labels = axes.get_legend_handles_labels()
    labels = [textwrap.fill(label, _LEGEND_WIDTH) for label in labels]
    axes.legend(lines, labels, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))  # beside the curves
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90, metadata={"Software": None})
    plt.close(figure)
