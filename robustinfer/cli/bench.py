"""`robust bench`: how fast a model answers on this machine."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import note, print_json, print_text, progress
from .options import CardFile, Device, Json, Threads

if TYPE_CHECKING:
    from ..throughput import FileSpeed, Throughput

__all__ = ["command"]


def command(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL", help="Model files (.onnx, .pt, .pt2); several are compared.", show_default=False
        ),
    ],
    batches: Annotated[
        str, typer.Option(help="Batch sizes to try, separated by commas.", metavar="N,N,...")
    ] = "1,16,64,256,1024",
    seconds: Annotated[float, typer.Option(help="Seconds per measurement.", min=0.0)] = 1.0,
    data: Annotated[
        str | None,
        typer.Option(
            help="Data set to measure on, under noise, named as for robust certify: a cascade's speed depends on it.",
            show_default="random pixels",
        ),
    ] = None,
    card: CardFile = None,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Measure samples per second: the engine alone, whole certificates, and the limit of the machine.

    The limit is the speed of a float32 matrix product, measured in the same run, divided by the cost of a sample.

    [bold]robust bench quickstart/digits.onnx[/bold]

    Several files are timed in turn, and the fastest on this machine is named.

    [bold]robust bench float32.onnx int8.onnx[/bold]
    """
    from ..card import Card
    from ..engines.inspection import inspect_model
    from ..errors import ArgumentError
    from ..predictor import Predictor
    from ..throughput import compare_throughput, measure_throughput

    try:
        sizes = [int(size) for size in batches.split(",")]
    except ValueError as error:
        raise ArgumentError(f"Expected batch sizes such as 1,64,256, found {batches!r}.") from error
    if min(sizes) < 1:
        raise ArgumentError(f"Expected batch sizes of at least 1, found {batches!r}.")
    given = Card.read(card) if card else None
    predictors = [Predictor.load(model, device=device, threads=threads, card=given) for model in models]
    if len({(one.card.input, one.card.classes) for one in predictors}) > 1:
        raise ArgumentError("Files are compared on the same images: expected the same input and classes in all cards.")
    images = None if data is None else _images(data, predictors[0].card)
    if len(models) > 1:
        with progress("measuring", total=len(sizes)) as advance:
            rows = compare_throughput(predictors, images=images, batches=sizes, seconds=seconds, progress=advance)
        _print_comparison(models, rows, json=json)
    else:
        inspection = inspect_model(models[0])
        # Whole numbers are multiplied faster than floats, and what a cascade computes depends on its images: the limit
        # of the matrix product is not theirs.
        limited = "QuantizeLinear" not in (inspection.operators or {}) and predictors[0].card.cascade is None
        options: dict[str, Any] = {"flops": inspection.flops if limited else None, "images": images}
        with progress("measuring", total=len(sizes) + 2) as advance:
            found = measure_throughput(predictors[0], batches=sizes, seconds=seconds, progress=advance, **options)
        print_json(found.to_json()) if json else _print_table(found)
    for model, predictor in zip(models, predictors, strict=True):
        if predictor.card.cascade is not None and not json:
            _say_cascade(model, predictor.card.cascade, measured=images is not None)


def _images(spec: str, card: Any) -> Any:
    """Up to 64 images of a data set, evenly over its classes."""
    import numpy as np

    from ..data import choose_readable, load_images

    found = load_images(spec, card, split="auto")
    pixels = [found.read(int(number)) for number in choose_readable(found, limit=64)[0]]
    whole = [image if image.dtype == np.uint8 else np.rint(image * 255).astype(np.uint8) for image in pixels]
    return np.stack(whole).reshape(len(whole), *card.input.shape)


def _print_comparison(models: list[Path], rows: "tuple[FileSpeed, ...]", *, json: bool) -> None:
    fastest = max(range(len(rows)), key=lambda number: rows[number].rate)
    if json:
        files = [{"path": str(path), **dataclasses.asdict(row)} for path, row in zip(models, rows, strict=True)]
        print_json({"files": files, "fastest": str(models[fastest])})
        return
    width = max(len(str(path)) for path in models)
    print_text(f"{'file':<{width}}{'batch':>8}{'samples per second':>20}{'times the first':>17}")
    for path, row in zip(models, rows, strict=True):
        print_text(f"{path!s:<{width}}{row.batch:>8}{row.rate:>20,.0f}{row.times:>17.2f}")
    print_text(f"{models[fastest]} is the fastest on this machine")


def _say_cascade(model: Path, cascade: Any, *, measured: bool) -> None:
    from .inspect import members_asked

    expected = f", expected: {members_asked(cascade)}" if "members_asked" in cascade else ""
    pixels = "" if measured else "; these were random pixels, name yours with --data"
    note(f"{model} is a cascade{expected}. It is faster or slower on other images{pixels}.")


def _print_table(found: "Throughput") -> None:
    print_text(f"{found.model} on {found.device}, {found.engine_name}; samples per second")
    print_text(f"{'':<24}{'batch':>6}{'median':>12}{'best':>12}")
    for rate in found.engine:
        print_text(f"{'engine alone':<24}{rate.batch:>6}{rate.median:>12,.0f}{rate.best:>12,.0f}")
    certify = f"certify, n = {found.certify_samples:,}"
    print_text(f"{certify:<24}{found.batch:>6}{found.certify:>12,.0f}")
    if found.limit is None or found.gflops is None or found.flops is None:
        print_text(
            "machine's limit: not known (it needs a CPU, float32 arithmetic, and the cost of the graph: pip install "
            "robustinfer[train])"
        )
        return
    print_text(f"{'machine at most':<24}{'':>6}{found.limit:>12,.0f}")
    print_text(
        f"matrix product {found.gflops:,.0f} GFLOP/s, {found.flops / 1e6:,.2f} MFLOP per sample: certificates run at "
        f"{found.share:.0%} of the machine's limit"
    )
    if found.disturbed:
        note("The engine was faster than the limit, so other work disturbed the measurement: repeat it.")
