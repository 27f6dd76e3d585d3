"""`robust bench`: how fast a model answers on this machine."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import note, print_json, print_text, progress
from .options import CardFile, Device, Json, Model, Threads

if TYPE_CHECKING:
    from ..throughput import Throughput

__all__ = ["command"]


def command(
    model: Model,
    batches: Annotated[
        str, typer.Option(help="Batch sizes to try, separated by commas.", metavar="N,N,...")
    ] = "1,16,64,256,1024",
    seconds: Annotated[float, typer.Option(help="Seconds per measurement.", min=0.0)] = 1.0,
    card: CardFile = None,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Measure samples per second: the engine alone, whole certificates, and the limit of the machine.

    The limit is the speed of a float32 matrix product, measured in the same run, divided by the cost of a sample.

    [bold]robust bench quickstart/digits.onnx[/bold]
    """
    from ..card import Card
    from ..engines.inspection import inspect_model
    from ..errors import ArgumentError
    from ..predictor import Predictor
    from ..throughput import measure_throughput

    try:
        sizes = [int(size) for size in batches.split(",")]
    except ValueError as error:
        raise ArgumentError(f"Expected batch sizes such as 1,64,256, found {batches!r}.") from error
    if min(sizes) < 1:
        raise ArgumentError(f"Expected batch sizes of at least 1, found {batches!r}.")
    given = Card.read(card) if card else None
    predictor = Predictor.load(model, device=device, threads=threads, card=given)
    inspection = inspect_model(model)
    # Whole numbers are multiplied faster than floats, and what a cascade computes depends on its images: the limit of
    # the matrix product is not theirs.
    limited = "QuantizeLinear" not in (inspection.operators or {}) and predictor.card.cascade is None
    flops = inspection.flops if limited else None
    with progress("measuring", total=len(sizes) + 2) as advance:
        found = measure_throughput(predictor, flops=flops, batches=sizes, seconds=seconds, progress=advance)
    print_json(found.to_json()) if json else _print_table(found)
    if predictor.card.cascade is not None and not json:
        _say_cascade(predictor.card.cascade)


def _say_cascade(cascade: Any) -> None:
    from .inspect import members_asked

    expected = f"expected: {members_asked(cascade)}; " if "members_asked" in cascade else ""
    note(f"{expected}a cascade is faster or slower on other images, and these are random pixels")


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
