"""Options that several commands share, so that they are named and explained alike.

The options that are settings of a request take their help and defaults from `robustinfer.settings`.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..settings import SETTINGS

__all__ = [
    "N0",
    "Alpha",
    "Batch",
    "Bound",
    "CardFile",
    "Deadline",
    "Device",
    "Domain",
    "Json",
    "Members",
    "Model",
    "N",
    "Noise",
    "PassphraseFile",
    "Quantile",
    "Radius",
    "Seed",
    "Sigma",
    "SkipUnreadable",
    "Split",
    "Threads",
    "Tolerance",
]


def _setting(name: str, *flags: str) -> Any:
    setting = SETTINGS[name]
    shown = setting.chosen if name != "n" else True  # a command has one mode, so n has one default
    return typer.Option(*flags, help=setting.help, show_default=bool(setting.defaults) if shown is None else shown)


N = Annotated[int, _setting("n")]
Alpha = Annotated[float, _setting("alpha")]
Radius = Annotated[float | None, _setting("radius")]
Tolerance = Annotated[float | None, _setting("tolerance")]
Quantile = Annotated[float | None, _setting("quantile")]
Deadline = Annotated[float | None, _setting("deadline")]
Bound = Annotated[str | None, _setting("bound")]
N0 = Annotated[int | None, _setting("n0")]
Members = Annotated[bool | None, _setting("members", "--members/--fused")]
Sigma = Annotated[float | None, _setting("sigma")]
Domain = Annotated[str | None, _setting("domain")]
Noise = Annotated[str | None, _setting("noise")]
Seed = Annotated[int | None, _setting("seed")]

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Model file: .onnx, .pt or .pt2.", show_default=False)]
CardFile = Annotated[
    Path | None,
    typer.Option("--card", help="Card (a JSON file) for a model file without one.", show_default=False),
]
Batch = Annotated[int | None, typer.Option(help="Samples per engine run.", show_default=False)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N. A named device is never replaced.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per answer, and nothing else, to stdout.")]
Threads = Annotated[int | None, typer.Option(help="Threads per engine run.", show_default="all cores")]
Split = Annotated[
    str,
    typer.Option(
        help="Part of the data set: train, test or all; auto is test, or all if the set has no parts and the model was "
        "not trained here."
    ),
]
SkipUnreadable = Annotated[
    int,
    typer.Option(metavar="N", help="Leave out up to N unreadable files, named on stderr; more are an error.", min=0),
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(help="File with the key's passphrase. Default: ROBUST_KEY_PASSPHRASE, or none.", show_default=False),
]
