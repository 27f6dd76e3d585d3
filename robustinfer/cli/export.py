"""`robust export`: a run folder becomes one model file."""

from pathlib import Path
from typing import Annotated, Any

import typer

from .console import print_json, print_text, progress
from .options import Json

__all__ = ["command"]


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of a training.", show_default=False)],
    out: Annotated[
        Path,
        typer.Option(help="The file to write: .onnx, .pt, .pt2 or .mar; a folder for triton.", show_default=False),
    ],
    format: Annotated[
        str | None,
        typer.Option(help="onnx, torchscript, pt2, triton or mar; by default what the suffix of --out says."),
    ] = None,
    stages: Annotated[
        int | None, typer.Option(help="Use the first K stages, with the betas they had then.", metavar="K", min=1)
    ] = None,
    sampler: Annotated[
        bool, typer.Option("--sampler", help="Add the sampler graph: image, seed and count in, votes per class out.")
    ] = False,
    members: Annotated[
        bool | None,
        typer.Option(
            "--members/--fused",
            help="A file in which the members vote, or one of ensemble scores.",
            show_default="members for minimax runs",
        ),
    ] = None,
    opset: Annotated[int | None, typer.Option(help="ONNX opset, 18 to 23; torch's own choice by default.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model; the recipe's by default.")] = None,
    version: Annotated[str, typer.Option(help="Version of the model.")] = "1",
    license: Annotated[str | None, typer.Option(help="Licence of the model, such as CC-BY-4.0.")] = None,
    author: Annotated[str | None, typer.Option(help="Who made the model.")] = None,
    data: Annotated[
        Path, typer.Option(help="Folder of data sets: acceptance compares on test images if they are there.")
    ] = Path("data"),
    samples: Annotated[int, typer.Option(help="Votes on noisy images that acceptance compares.", min=1)] = 1000,
    json: Json = False,
) -> None:
    """Write a trained run as one model file.

    Normalisation, all members and their betas become one graph from pixels in [0,1] to ensemble scores, with the card
    inside. The file is opened and compared with the run before it takes its name.

    [bold]robust export runs/digits --out digits.onnx --sampler[/bold]
    """
    from ..extras import needed

    with needed(extra="train", why="robust export"):
        from robust.export.exporter import export_run
        from robust.export.repositories import export_archive, export_triton

    kind = format or ("mar" if out.suffix == ".mar" else None)
    options: dict[str, Any] = {
        "stages": stages,
        "sampler": sampler,
        "members": members,
        "opset": opset,
        "name": name,
        "version": version,
        "license": license,
        "author": author,
        "data": data,
        "samples": samples,
    }
    with progress("exporting and comparing", total=samples) as advance:
        if kind == "triton":
            exported = export_triton(run, out, progress=advance, **options)
        elif kind == "mar":
            with needed(extra="serve", why="A TorchServe archive"):
                from robust.serve import pack
            exported = export_archive(run, out, pack=pack, progress=advance, **options)
        else:
            exported = export_run(run, out, format=kind, progress=advance, **options)
    if json:
        print_json(exported.to_json())
        return
    parity = exported.card.parity
    print_text(f"{exported.path}: {exported.bytes:,} bytes, {len(exported.card.members)} members, {exported.digest}")
    print_text(
        f"scores differ by {parity['relative_difference']:g} at most (relative), {parity['flips']} of "
        f"{parity['samples']} votes flipped, zeta {parity['zeta']:g} ({parity['engine']}, {parity['images']} images)"
    )
