"""The figures of a report, as SVG elements: drawn by matplotlib, without a display and without global state.

Every colour of a figure is a variable of the page's style sheet, so that it can be read by day and in the dark.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from ..certificate_file import Entry
from ..extras import require
from ..plot import certified_accuracy_figure
from .material import RunFacts

__all__ = ["accuracy_by_stage", "certified_accuracy", "time_by_stage"]

_BLUE, _ORANGE, _GREY = "#0b6e99", "#d9730d", "#767676"
_INK, _GRID = "#1d2329", "#b0b0b0"
# What matplotlib draws with, and what stands for it on the page; the last three are further curves of certificates.
_VARIABLES = {
    _INK: "currentColor",
    _GRID: "var(--grid)",
    _BLUE: "var(--series-1)",
    _ORANGE: "var(--series-2)",
    _GREY: "var(--soft)",
    "#6b8e23": "var(--series-3)",
    "#8b5fbf": "var(--series-4)",
    "#555555": "var(--series-5)",
}
_SIZE = (5.6, 3.7)
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_STYLE = {
    "font.size": 11,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "path",  # a page that is opened elsewhere must not depend on the fonts there
    "svg.hashsalt": "robustinfer",  # equal figures are equal bytes
}


def certified_accuracy(curves: Mapping[str, Sequence[Entry]]) -> str:
    """Certified accuracy against radius, one curve a model, with bands of 95 % confidence."""
    return _svg(lambda: certified_accuracy_figure(curves), "certified", "Certified accuracy against radius")


def accuracy_by_stage(run: RunFacts) -> str:
    """Clean accuracy and accuracy under attack after each stage; the last member alone as a dashed line."""
    return _svg(lambda: _stages_figure(run), f"accuracy-{run.recipe['name']}", "Accuracy by stage")


def time_by_stage(run: RunFacts) -> str:
    """Seconds of training by stage."""
    return _svg(lambda: _time_figure(run), f"time-{run.recipe['name']}", "Training time by stage")


def _svg(draw: Callable[[], Any], name: str, words: str) -> str:
    """An <svg> element for the page. `name` keeps the ids of several figures apart."""
    matplotlib = require("matplotlib", extra="report", why="A report")
    with matplotlib.rc_context(_STYLE):
        figure = draw()
        figure.set_size_inches(*_SIZE)
        stream = io.BytesIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    root = ElementTree.fromstring(stream.getvalue())
    prefix = re.sub(r"\W", "-", name) + "-"
    for element in root.iter():
        for child in list(element):  # inside a page, a style sheet of one figure would be that of everything
            if child.tag in (
                f"{{{_SVG}}}metadata",
                f"{{{_SVG}}}style",
            ):
                element.remove(child)
        for key, value in element.attrib.items():
            element.set(key, _for_page(key, value, prefix))
    for key in ("width", "height"):
        del root.attrib[key]
    root.attrib |= {"class": "plot", "role": "img", "aria-label": words}
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _for_page(key: str, value: str, prefix: str) -> str:
    """An attribute with the page's colours, and with ids that no other figure has."""
    if key == "id":
        return prefix + value
    if key.endswith("href"):
        return value.replace("#", f"#{prefix}")
    value = value.replace("url(#", f"url(#{prefix}")
    for colour, variable in _VARIABLES.items():
        value = value.replace(colour, variable)
    return value


def _axes() -> tuple[Any, Any]:
    figures = require("matplotlib.figure", extra="report", why="A report")
    figure = figures.Figure(layout="constrained")
    return figure, figure.add_subplot()


def _stages_figure(run: RunFacts) -> Any:
    figure, axes = _axes()
    attack = run.attack
    if attack is not None:
        rows = [row for row in attack["rows"] if row["stages"] is not None]
        numbers = [row["stages"] for row in rows]
        _points(axes, numbers, [row["clean"] for row in rows], _GREY, "no attack")
        _points(axes, numbers, [row["robust"] for row in rows], _BLUE, f"under attack, {attack['norm']} length "
                f"{attack['delta']:g}")  # fmt: skip
        alone = next((row for row in attack["rows"] if row["stages"] is None), None)
        if alone is not None:
            axes.axhline(alone["robust"]["rate"], color=_ORANGE, linestyle="--", linewidth=1.2)
            axes.plot([], [], color=_ORANGE, linestyle="--", label="last member alone, under attack")
    else:
        numbers = [stage["number"] for stage in run.stages]
        for key, colour, label in (("clean_accuracy", _GREY, "no attack"), ("robust_accuracy", _BLUE, "under attack")):
            axes.plot(numbers, [stage["metrics"][key] for stage in run.stages], "o-", color=colour, label=label)
    axes.set(xlabel="stages", ylabel="accuracy", ylim=(0, 1.02), xticks=numbers)
    axes.set_xlim(min(numbers) - 0.3, max(numbers) + 0.3)
    axes.grid(alpha=0.3, axis="y")
    axes.legend(frameon=False, loc="lower right")
    return figure


def _points(axes: Any, numbers: Sequence[int], rates: Sequence[Mapping[str, float]], colour: str, label: str) -> None:
    """Rates with their intervals."""
    values = [rate["rate"] for rate in rates]
    below = [max(0.0, rate["rate"] - rate["low"]) for rate in rates]
    above = [max(0.0, rate["high"] - rate["rate"]) for rate in rates]
    axes.errorbar(numbers, values, yerr=[below, above], fmt="o-", color=colour, capsize=3, linewidth=1.6, label=label)


def _time_figure(run: RunFacts) -> Any:
    figure, axes = _axes()
    numbers = [stage["number"] for stage in run.stages]
    seconds = [stage["seconds"] for stage in run.stages]
    bars = axes.bar(numbers, seconds, color=_BLUE, width=0.6)
    labels = [
        f"{second:.0f} s" + (f"\n{stage['metrics']['epochs']} epochs" if "epochs" in stage["metrics"] else "")
        for second, stage in zip(seconds, run.stages, strict=True)
    ]
    axes.bar_label(bars, labels=labels, padding=3, fontsize=10)
    axes.set(xlabel="stage", ylabel="seconds of training", xticks=numbers)
    axes.set_ylim(0, 1.25 * max(max(seconds), 1e-3))
    axes.grid(alpha=0.3, axis="y")
    axes.set_axisbelow(True)
    return figure
