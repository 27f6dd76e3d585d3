"""`robust export`: a run folder, or several model files as members, become one model file."""

from pathlib import Path
from typing import Annotated, Any

import typer

from .console import existing, note, print_json, print_text, progress
from .options import Json

__all__ = ["beside_float", "command"]


def command(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN|FILE",
            help="A run folder; with --members, two or more .onnx model files.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(help="The file to write: .onnx, .pt, .pt2 or .mar; a folder for triton.", show_default=False),
    ],
    format: Annotated[
        str | None,
        typer.Option(help="onnx, torchscript, pt2, triton or mar; by default the one that the suffix of --out names."),
    ] = None,
    stages: Annotated[
        int | None, typer.Option(help="Use the first K stages, with the betas they had then.", metavar="K", min=1)
    ] = None,
    sampler: Annotated[
        bool, typer.Option("--sampler", help="Add the sampler graph: image, seed and count in, votes per class out.")
    ] = False,
    members: Annotated[
        bool,
        typer.Option(
            "--members",
            help="Join the files as members of one ensemble; for a run, the same as --votes.",
        ),
    ] = False,
    votes: Annotated[
        bool | None,
        typer.Option(
            "--votes/--fused",
            help="A file in which the members vote, or one of ensemble scores.",
            show_default="votes for minimax runs",
        ),
    ] = None,
    betas: Annotated[
        str | None,
        typer.Option(
            help="With --members: their betas, separated by commas.", show_default="equal, or fitted on --data"
        ),
    ] = None,
    sigma: Annotated[
        float | None, typer.Option(help="With --members: the noise to certify with, if their cards differ.")
    ] = None,
    limit: Annotated[
        int,
        typer.Option(help="With --members: maximum number of images to fit betas on, evenly over classes.", min=20),
    ] = 1000,
    split: Annotated[
        str, typer.Option(help="With --members: part of --data to fit on: train, test, all or auto.")
    ] = "auto",
    opset: Annotated[int | None, typer.Option(help="ONNX opset, 18 to 23; torch's own choice by default.")] = None,
    precision: Annotated[
        str,
        typer.Option(
            help="float32; int8, calibrated on noisy training images, smaller and often faster on CPUs; fp16 for GPUs."
        ),
    ] = "float32",
    cascade: Annotated[
        bool,
        typer.Option(
            "--cascade",
            help="Ask the members one after another, and stop as soon as a sample is settled. Fitted on noisy "
            "held-out images; a classifier of its own, certified as such.",
        ),
    ] = False,
    agreement: Annotated[
        float | None,
        typer.Option(
            help="With --cascade: share of noisy samples that keep the label of the plain ensemble.",
            show_default="0.999",
        ),
    ] = None,
    consensus: Annotated[
        int | None,
        typer.Option(help="With --cascade: stop once K members agree, instead of by margins.", metavar="K"),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model; the recipe's by default.")] = None,
    version: Annotated[str, typer.Option(help="Version of the model.")] = "1",
    license: Annotated[str | None, typer.Option(help="Licence of the model, such as CC-BY-4.0.")] = None,
    author: Annotated[str | None, typer.Option(help="Who made the model.")] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Folder of data sets: acceptance uses test images, if present. With --members a data "
            "set such as folder:held-out, on which their betas are fitted.",
            show_default="data; with --members none",
        ),
    ] = None,
    samples: Annotated[int, typer.Option(help="Votes on noisy images that acceptance compares.", min=1)] = 1000,
    json: Json = False,
) -> None:
    """Write a trained run, or several model files as members, as one model file.

    Normalisation, all members and their betas become one graph from pixels in [0,1] to ensemble scores, with the card
    inside. The file is opened and compared with the run before it takes its name.

    [bold]robust export runs/digits --out digits.onnx --sampler[/bold]

    With --cascade the file asks most samples of few members, and is that much faster (robust inspect says of how many).

    [bold]robust export runs/digits --out digits.onnx --cascade --precision int8[/bold]

    With --members, networks that you have (made model files by robust wrap) become one ensemble without training: their
    scores are averaged, or weighted by betas that are fitted on images that none of them was trained on.

    [bold]robust export --members a.onnx b.onnx --data folder:held-out --out both.onnx[/bold]
    """
    from ..extras import needed

    run = _run(sources, members=members)
    if run is None:
        options: dict[str, Any] = {
            "betas": _numbers(betas),
            "sigma": sigma,
            "limit": limit,
            "split": split,
            "data": data,
        }
        about = {"name": name, "version": version, "license": license, "author": author, "samples": samples}
        asked = cascade or agreement is not None or consensus is not None
        _refuse_foreign(format, stages, opset, precision=precision, cascade=asked)
        _join(sources, out, json=json, options={**options, **about, "votes": bool(votes), "sampler": sampler})
        return
    if members:
        votes = True
    with needed(extra="train", why="robust export"):
        from robust.export.exporter import export_run
        from robust.export.repositories import export_archive, export_triton

    kind = format or ("mar" if out.suffix == ".mar" else None)
    options = {
        "stages": stages,
        "sampler": sampler,
        "members": votes,
        "opset": opset,
        "precision": precision,
        "cascade": _cascade(cascade, agreement, consensus),
        "name": name,
        "version": version,
        "license": license,
        "author": author,
        "data": data or "data",
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
    _show(exported, json=json)


def _run(sources: list[Path], *, members: bool) -> Path | None:
    """The run folder to export, or None if the sources are model files that shall be members."""
    from ..errors import ArgumentError

    if len(sources) == 1 and not (members and sources[0].is_file()):
        return sources[0]
    if not members:
        raise ArgumentError("One run folder is exported at a time; model files are joined with --members.")
    return None


def _refuse_foreign(
    format: str | None, stages: int | None, opset: int | None, *, precision: str, cascade: bool
) -> None:
    from ..errors import ArgumentError

    given = {"--stages": stages is not None, "--opset": opset is not None, "--format": format not in (None, "onnx")}
    given |= {"--precision": precision != "float32", "--cascade": cascade}
    for option, found in given.items():
        if found:
            raise ArgumentError(f"{option} is for runs; with --members one .onnx file is made of .onnx files.")


def _cascade(wanted: bool, agreement: float | None, consensus: int | None) -> Any:
    """What the file is to be as a cascade, or None if it shall be none."""
    from ..errors import ArgumentError

    if not wanted:
        if agreement is not None or consensus is not None:
            raise ArgumentError("--agreement and --consensus are for cascades: add --cascade, or leave them out.")
        return None
    if agreement is not None and consensus is not None:
        raise ArgumentError("Give --agreement or --consensus, not both.")
    from robust.export import CascadeOptions

    if consensus is not None:
        return CascadeOptions(consensus=consensus)
    return CascadeOptions() if agreement is None else CascadeOptions(agreement=agreement)


def _numbers(words: str | None) -> list[float] | None:
    from ..errors import ArgumentError

    try:
        return None if words is None else [float(word) for word in words.split(",")]
    except ValueError as error:
        raise ArgumentError(f"Expected betas such as 0.7,0.3, found {words!r}.") from error


def _join(sources: list[Path], out: Path, *, json: bool, options: dict[str, Any]) -> None:
    from ..extras import needed

    with needed(extra="train", why="robust export"):
        from robust.export import export_members
    with progress("joining and comparing", total=options["samples"]) as advance:
        joined = export_members(existing(sources), out, progress=advance, **options)
    _show(joined, json=json)
    if json:
        return
    for member in joined.card.members:
        print_text(f"  beta {member.beta:.4g}  {member.architecture}")
    if joined.fit is not None:
        noise = "" if joined.fit.sigma is None else f" under noise of sigma {joined.fit.sigma:g}"
        print_text(
            f"betas fitted on {joined.fit.fitted} images of {joined.fit.images}; on {joined.fit.judged} others{noise}:"
        )
        for row in joined.fit.scored:
            print_text(f"  {row.what:<20}  accuracy {100 * row.accuracy:5.1f} %, cross-entropy {row.loss:.4f}")
        note("measure the result on other images")
    for words in joined.notes:
        note(f"note: {words}")


def beside_float(card: Any) -> str:
    """What a cascade, or a file of lower precision, certifies beside the plain float32 file, where it was measured."""
    from ..smoothing.bounds import format_radius
    from ..summary import percent

    measured = card.parity.get("held_out")
    if not measured:
        return ""
    plain, this = measured["float32"], measured["this file"]
    words = f"{'a cascade ' if card.cascade else ''}in {card.parity.get('precision', 'float32')}"
    return (
        f"certified accuracy {percent(this['certified_accuracy'])} and ACR {format_radius(this['acr'])} as {words}, "
        f"{percent(plain['certified_accuracy'])} and {format_radius(plain['acr'])} as the plain file in float32 "
        f"({measured['count']} held-out images)"
    )


def _show(exported: Any, *, json: bool) -> None:
    if json:
        print_json(exported.to_json())
        return
    parity, cascade = exported.card.parity, exported.card.cascade
    if words := beside_float(exported.card):
        print_text(words)
    if cascade:
        print_text(
            f"asks {cascade['members_asked']:.2f} of {len(cascade['order'])} members per sample; "
            f"{cascade['agreement']:.1%} of samples have the plain ensemble's label ({cascade['judged']} images that "
            f"took no part in the fit, {cascade['images']})"
        )
    count = len(exported.card.members)
    members = f"{count} member{'s' * (count != 1)}"
    print_text(f"{exported.path}: {exported.bytes:,} bytes, {members}, {exported.digest}")
    print_text(
        f"scores differ by {parity['relative_difference']:g} at most (relative), {parity['flips']} of "
        f"{parity['samples']} votes flipped, zeta {parity['zeta']:g} ({parity['engine']}, {parity['images']} images)"
    )
