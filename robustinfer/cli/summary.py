"""`robust summary`: the table and the plot of a data set's certificates, from one file or from all its shards."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from .console import existing, note, print_json, print_text
from .options import Json

__all__ = ["command", "show"]


def command(
    certificates: Annotated[
        list[Path], typer.Argument(metavar="CERTIFICATES...", help="JSONL files of robust certify --data.")
    ],
    radii: Annotated[
        str | None, typer.Option(help="Radii of the table, separated by commas.", show_default="steps of 0.25")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot file.", show_default="beside the first file")] = None,
    json: Json = False,
) -> None:
    """Certified accuracy, average certified radius and abstentions of a data set.

    [bold]robust summary certificates-*.jsonl[/bold]
    """
    from ..errors import ArgumentError

    try:
        chosen = [float(radius) for radius in radii.split(",")] if radii else None
    except ValueError as error:
        raise ArgumentError(f"Expected radii such as 0,0.25,0.5, found {radii!r}.") from error
    show(existing(certificates), plot=plot, json=json, radii=chosen)


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
    """The summary as text. Accuracies and radii are rounded down."""
    from ..smoothing.bounds import format_radius

    acr, low, high = map(format_radius, (summary.acr, summary.acr_low, summary.acr_high))
    lines = [
        f"{summary.images} images of {summary.data}, sigma {summary.sigma:g}, alpha {summary.alpha:g}, "
        f"{summary.bound} bound, {summary.samples:.0f} samples per image",
        f"average certified radius {acr} (95 %: {low} to {high}), "
        f"abstained {summary.abstained:.1%}, wrong label {summary.wrong:.1%}",
    ]
    if summary.linf_mean is not None:
        mean, median = (format_radius(radius, 4) for radius in (summary.linf_mean, summary.linf_median))
        lines.append(f"in l1 the same radii; in l_inf {mean} on average, median {median} (weak for large images)")
    if summary.missing:
        lines.append(f"{summary.missing} images of the data set are not certified yet")
    lines += ["", "radius   certified accuracy   95 % interval        with high probability"]
    for row in summary.accuracies:
        lines.append(
            f"{row.radius:6.2f}   {100 * row.accuracy:14.1f} %     {100 * row.low:5.1f} % to {100 * row.high:5.1f} %   "
            f"{100 * row.high_probability:14.1f} %"
        )
    return "\n".join(lines)
