"""The plot people look at first: certified accuracy against radius."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .certificate_file import Entry
from .extras import require
from .files import replacing
from .summary import accuracy_interval

__all__ = ["certified_accuracy_figure", "plot_certified_accuracy"]

_COLOURS = ("#0b6e99", "#d9730d", "#6b8e23", "#8b5fbf", "#555555")


def plot_certified_accuracy(curves: Mapping[str, Sequence[Entry]], path: Path, *, title: str = "") -> None:
    """Write the plot of one or several sets of certificates, as PNG, SVG or PDF by the suffix of `path`."""
    figure = certified_accuracy_figure(curves, title=title)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def certified_accuracy_figure(curves: Mapping[str, Sequence[Entry]], *, title: str = "") -> Any:
    """Certified accuracy against radius, a step function, with a band of Clopper-Pearson intervals."""
    figures = require("matplotlib.figure", extra="report", why="A plot")
    figure = figures.Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for (name, entries), colour in zip(curves.items(), _COLOURS * (1 + len(curves) // len(_COLOURS)), strict=False):
        radii, hits = _steps(entries)
        low, high = accuracy_interval(hits, len(entries))
        axes.step(radii, hits / len(entries), where="pre", color=colour, label=name, linewidth=1.6)
        axes.fill_between(radii, low, high, step="pre", color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="l2 radius (pixels in [0,1])", ylabel="certified accuracy", ylim=(0, 1), title=title)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    if len(curves) > 1 or any(curves):
        axes.legend(frameon=False)
    return figure


def _steps(entries: Sequence[Entry]) -> tuple[Any, Any]:
    """Radii at which the accuracy falls, and how many images are certified up to each of them."""
    radii = np.sort([entry.correct_radius for entry in entries if entry.correct])
    points = np.concatenate([[0.0], np.unique(radii), [radii.max() * 1.02 if len(radii) else 1.0]])
    return points, len(radii) - np.searchsorted(radii, points, side="left")
