"""`robust summary`: the table and the plot of a data set's certificates, from one file or from all its shards."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..extras import needed
from .console import existing, note, print_json, print_text
from .options import Json

__all__ = ["SHOWN", "command", "show"]

SHOWN = 20
"""Classes that are shown; of more, those with the lowest certified accuracy."""


def command(
    certificates: Annotated[
        list[Path], typer.Argument(metavar="CERTIFICATES...", help="JSONL files of robust certify --data.")
    ],
    radii: Annotated[
        str | None, typer.Option(help="Radii of the table, separated by commas.", show_default="steps of 0.25")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot file.", show_default="beside the first file")] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL.onnx",
            help="Write a copy of this model, MODEL-baseline.onnx, whose card has the abstentions and radii of these "
            "certificates: robust serve --engine asgi exports the distance to them.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Certified accuracy, average certified radius and abstentions of a data set, and of each of its classes.

    [bold]robust summary certificates-*.jsonl[/bold]
    [bold]robust summary certificates.jsonl --baseline signs.onnx[/bold]
    """
    from ..errors import ArgumentError

    try:
        chosen = [float(radius) for radius in radii.split(",")] if radii else None
    except ValueError as error:
        raise ArgumentError(f"Expected radii such as 0,0.25,0.5, found {radii!r}.") from error
    show(existing(certificates), plot=plot, json=json, radii=chosen)
    if baseline is not None:
        _write_baseline(certificates, baseline)


def _write_baseline(certificates: Sequence[Path], model: Path) -> None:
    with needed(extra="train", why="robust summary --baseline"):
        from robust.export.baselines import write_baseline

    from ..baseline import Baseline
    from ..summary import merge

    out = model.with_name(f"{model.stem}-baseline{model.suffix}")
    write_baseline(model, out, Baseline.of([entry.certificate for entry in merge(certificates)[1]]))
    note(f"model with a baseline: {out}")


def show(paths: Sequence[Path], *, plot: Path | None, json: bool, radii: Sequence[float] | None) -> None:
    """Print the summary of these files, and write the plot."""
    from ..plot import plot_certified_accuracy
    from ..summary import merge, summarize

    header, entries = merge(paths)
    summary = summarize(header, entries, radii=radii)
    target = plot or _beside(paths)
    plot_certified_accuracy(
        {f"{header.model['name']}, sigma {summary.sigma:g}": entries}, target, title=header.data_name
    )
    if json:
        print_json(summary.to_json())
    else:
        print_text(_table(summary))
    note(f"plot: {target}")


def _beside(paths: Sequence[Path]) -> Path:
    """Where the plot goes: under the name of the whole, if these are its shards."""
    stem = paths[0].stem if len(paths) == 1 else re.sub(r"-\d+-of-\d+$", "", paths[0].stem)
    return paths[0].with_name(f"{stem}-accuracy.png")  # a name that no picture of the user's is likely to have


def _table(summary: Any) -> str:
    """The summary as text. Accuracies and radii are rounded down, failures up; the radii of the table are exact."""
    from ..smoothing.bounds import format_radius
    from ..summary import percent

    acr, low, high = map(format_radius, (summary.acr, summary.acr_low, summary.acr_high))
    lines = [
        f"{summary.images} images of {summary.data}, sigma {summary.sigma:g}, alpha {summary.alpha:g}, "
        f"{summary.bound} bound, {summary.samples:.0f} samples per image",
        f"average certified radius {acr} (95 %: {low} to {high}), "
        f"abstained {percent(summary.abstained, failure=True)}, wrong label {percent(summary.wrong, failure=True)}",
    ]
    if summary.possible is not None:
        lines.append(
            "Wald's estimate of what the best test would take, if it knew the probabilities: "
            f"{summary.possible:.0f} samples per image, {summary.possible / summary.samples:.0%} of what was used"
        )
    if summary.linf_mean is not None:
        mean, median = (format_radius(radius, 4) for radius in (summary.linf_mean, summary.linf_median))
        lines.append(f"in l1 the same radii; in l_inf {mean} on average, median {median} (weak for large images)")
    if summary.missing:
        lines.append(f"{summary.missing} images of the data set are not certified yet")
    lines += ["", "radius   certified accuracy   95 % interval        with high probability"]
    for row in summary.accuracies:
        interval = f"{percent(row.low):>7} to {percent(row.high, failure=True):>7}"
        high_probability = percent(row.high_probability)
        lines.append(f"{row.radius:6g}   {percent(row.accuracy):>16}     {interval}   {high_probability:>16}")
    return "\n".join([*lines, *_class_lines(summary)])


def _class_lines(summary: Any) -> list[str]:
    """Certified accuracy per class, the lowest first; of many classes the lowest ones only."""
    from ..smoothing.bounds import format_radius

    if len(summary.classes) < 2:
        return []
    first, middle = 0, len(summary.accuracies) // 2
    radii = [f"{summary.accuracies[place].radius:g}" for place in (first, middle)]
    ordered = sorted(summary.classes, key=lambda found: (found.accuracies[first].accuracy, found.acr))
    shown = ordered[:SHOWN]
    width = max(5, *(len(found.name) for found in shown))
    lines = [
        "",
        f"{'class':{width}}  images   at radius {radii[0]} (95 % interval)   at radius {radii[1]} (95 % interval)   "
        "average radius",
    ]
    for found in shown:
        parts = [
            f"{100 * row.accuracy:5.1f} % ({100 * row.low:5.1f} % to {100 * row.high:5.1f} %)"
            for row in (found.accuracies[first], found.accuracies[middle])
        ]
        lines.append(
            f"{found.name:{width}}  {found.images:6d}   {parts[0]}     {parts[1]}     {format_radius(found.acr)}"
        )
    if len(ordered) > len(shown):
        lines.append(f"... and {len(ordered) - len(shown)} classes with more; --json has them all")
    lines.append(f"mean over the {len(ordered)} classes at radius {radii[0]}: {100 * summary.class_mean:.1f} %")
    return lines
