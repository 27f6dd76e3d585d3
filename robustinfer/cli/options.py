"""Options that several commands share, so that they are named and explained alike."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Alpha",
    "Batch",
    "Device",
    "Json",
    "Model",
    "Noise",
    "Seed",
    "Sigma",
    "Threads",
]

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model file: .onnx, .pt or .pt2.", show_default=False)]
Alpha = Annotated[float, typer.Option(help="Probability with which an answer may be wrong.")]
Batch = Annotated[int | None, typer.Option(help="Samples in one run of the engine.", show_default=False)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N. A device you name is used or refused.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object an answer, and nothing else, to stdout.")]
Noise = Annotated[
    str | None,
    typer.Option(help="integer (8-bit images; sound in floating point) or continuous.", show_default="by the image"),
]
Seed = Annotated[int | None, typer.Option(help="Seed of the noise.", show_default="from the operating system")]
Sigma = Annotated[float | None, typer.Option(help="Noise level, if the card has none.", show_default="the card's")]
Threads = Annotated[int | None, typer.Option(help="Threads of one run of the engine.", show_default="all cores")]
