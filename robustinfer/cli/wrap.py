"""`robust wrap`: somebody else's classifier becomes one model file."""

from pathlib import Path
from typing import Annotated, Any

import typer

from .console import note, print_json, print_text, progress
from .export import beside_float
from .options import Json

__all__ = ["command"]


def command(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="An ONNX file, or the module:factory of a network.", show_default=False),
    ],
    out: Annotated[
        Path, typer.Option(help="The file to write: .onnx; for a torch module also .pt or .pt2.", show_default=False)
    ],
    classes: Annotated[Path, typer.Option(help="Text file with one class name per line, in the order of the scores.")],
    parameters: Annotated[
        Path | None,
        typer.Option(help="Parameters of a torch module: .safetensors, or a state_dict as .pth.", show_default=False),
    ] = None,
    mean: Annotated[
        str, typer.Option(help="Mean of the normalisation, for pixels in [0,1]: one number, or one per channel.")
    ] = "0",
    std: Annotated[str, typer.Option(help="Standard deviation of the normalisation, likewise.")] = "1",
    size: Annotated[
        str | None,
        typer.Option(help="Size of the images, N or HEIGHTxWIDTH, where the graph leaves it open.", show_default=False),
    ] = None,
    resize: Annotated[
        str, typer.Option(help="How images of other sizes are read: bilinear, bicubic, nearest or refuse.")
    ] = "bilinear",
    crop: Annotated[
        float | None,
        typer.Option(
            help="Share of each side that a crop after resizing keeps, 0.875 for 224 of 256 (timm's crop_pct).",
            show_default="crop to the shape, then resize",
        ),
    ] = None,
    layout: Annotated[
        str | None, typer.Option(help="nchw or nhwc: channels first or last.", show_default="what the graph says")
    ] = None,
    channels: Annotated[int, typer.Option(help="Channels of the images a torch module takes.", min=1)] = 3,
    sigma: Annotated[
        float | None, typer.Option(help="Noise to certify with, in pixel units.", show_default=False)
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            help="Folder of images to measure on, with one sub-folder per class if there are labels.",
            show_default="synthetic images",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of these images.", min=1)] = 250,
    samples: Annotated[int, typer.Option(help="Votes on noisy images that acceptance compares.", min=1)] = 200,
    precision: Annotated[
        str,
        typer.Option(
            help="float32; int8, calibrated on noisy copies of the images of --images, smaller and often faster on "
            "CPUs; fp16 for GPUs."
        ),
    ] = "float32",
    name: Annotated[str | None, typer.Option(help="Name of the model.", show_default="that of the file")] = None,
    version: Annotated[str, typer.Option(help="Version of the model, as clients see it.")] = "1",
    license: Annotated[str | None, typer.Option(help="Licence of the model, such as CC-BY-4.0.")] = None,
    author: Annotated[str | None, typer.Option(help="Who made the model.")] = None,
    json: Json = False,
) -> None:
    """Turn somebody else's classifier into a model file.

    Normalisation moves into the graph, a fixed batch size becomes dynamic, external weights are embedded, and the card
    says what it is. The result is compared with the original behind its own pipeline before it takes its name.

    [bold]robust wrap net.onnx --classes labels.txt --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --out m.onnx[/bold]
    [bold]robust wrap torchvision.models:resnet18 --parameters net.pth --size 224 --classes l.txt --out m.onnx[/bold]
    """
    from ..extras import needed

    with needed(extra="train", why="robust wrap"):
        from robust.export.wrapping import wrap

    options: dict[str, Any] = {
        "parameters": parameters, "crop": crop, "resize": resize, "layout": layout, "channels": channels,
        "sigma": sigma, "images": images, "limit": limit, "samples": samples, "precision": precision,
        "name": name, "version": version, "license": license, "author": author,
    }  # fmt: skip
    numbers: dict[str, Any] = {"mean": _numbers("mean", mean), "std": _numbers("std", std), "size": _size(size)}
    with progress("wrapping and comparing") as advance:
        wrapped = wrap(source, out, classes=classes, progress=advance, **numbers, **options)
    if json:
        print_json(wrapped.to_json())
        return
    parity = wrapped.card.parity
    print_text(f"{wrapped.path}: {wrapped.bytes:,} bytes, {len(wrapped.card.classes)} classes, {wrapped.digest}")
    if words := beside_float(wrapped.card):
        print_text(words)
    same = parity["clean"] - parity["clean_flips"]
    print_text(
        f"same label as the original on {same} of {parity['clean']} images ({parity['images']}), scores differ by "
        f"{parity['relative_difference']:g} at most (relative), {parity['flips']} of {parity['samples']} votes flipped"
    )
    for sentence in wrapped.notes:
        note(f"note: {sentence}.")


def _numbers(what: str, text: str) -> list[float]:
    from ..errors import ArgumentError

    try:
        return [float(number) for number in text.split(",")]
    except ValueError as error:
        raise ArgumentError(f"Expected --{what} as numbers such as 0.485,0.456,0.406, found {text!r}.") from error


def _size(text: str | None) -> tuple[int, int] | None:
    from ..errors import ArgumentError

    if text is None:
        return None
    height, _, width = text.lower().partition("x")
    if not height.isdigit() or not (width or height).isdigit():
        raise ArgumentError(f"Expected --size as N or HEIGHTxWIDTH such as 224 or 48x192, found {text!r}.")
    return int(height), int(width or height)
