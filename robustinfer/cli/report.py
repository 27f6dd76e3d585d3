"""`robust report`: one HTML page about a run and its certificates."""

from pathlib import Path
from typing import Annotated

import typer

from .console import existing, note, print_text

__all__ = ["command"]


def command(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN|CERTIFICATES",
            help="Run folders and JSONL files of robust certify --data, in any order; the first certificates are the "
            "model's, further ones are compared with it. A folder of robust quickstart provides everything.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Output file.")] = Path("report.html"),
    model: Annotated[
        Path | None,
        typer.Option(help="The certified model, for the gallery.", show_default="a file beside the certificates"),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="The certified images, for the gallery.", show_default="the data set of the certificates"),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.", show_default=False)] = None,
) -> None:
    """Write a page with certified accuracy, accuracy under attack, training time, a gallery, details and digests.

    The page is one file without scripts, for a browser, a phone or a printer.

    [bold]robust report runs/digits-l2 certificates.jsonl --out report.html[/bold]
    """
    from ..report import read_sources, write_report

    existing(sources)
    material = read_sources(sources, model=model, data=data)
    write_report(out, material, title=title)
    for sentence in material.notes:
        note(sentence)
    print_text(str(out))
