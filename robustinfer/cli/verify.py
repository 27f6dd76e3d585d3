"""`robust verify`: draw the samples of a certificate again."""

from pathlib import Path
from typing import Annotated

import typer

from .console import existing, print_json, print_text
from .options import Batch, Device, Json, Threads

__all__ = ["command"]


def command(
    certificate: Annotated[
        Path, typer.Argument(metavar="CERTIFICATE", help="A certificate in JSON, or a JSONL file and --index.")
    ],
    model: Annotated[Path, typer.Option(help="The model file that made the certificate.", show_default=False)],
    image: Annotated[Path | None, typer.Option(help="The image that was certified.", show_default=False)] = None,
    data: Annotated[
        str | None, typer.Option(help="The data set the image is from (with --index).", show_default=False)
    ] = None,
    index: Annotated[int | None, typer.Option(help="Number of the image in a JSONL file.", show_default=False)] = None,
    other_model: Annotated[
        bool,
        typer.Option("--other-model", help="Allow another file of the same ensemble, such as a TorchScript export."),
    ] = False,
    max_flips: Annotated[
        int,
        typer.Option(
            help="Votes that may differ, for another file or machine, if both counts prove the radius.", min=0
        ),
    ] = 0,
    device: Device = "auto",
    threads: Threads = None,
    batch: Batch = None,
    json: Json = False,
) -> None:
    """Replay a certificate: the same seed and the same model must make the same certificate.

    Exit code 0 if everything in it comes out again, else 1.

    [bold]robust verify five.json --model quickstart/digits.onnx --image quickstart/images/five.png[/bold]
    """
    from ..certificate import Certificate
    from ..certificate_file import read_certificates
    from ..data import load_images
    from ..errors import SettingError
    from ..images import read_image
    from ..predictor import Predictor

    existing([certificate, model])
    if (image is None) == (data is None):
        raise SettingError(
            "Give the certified image with --image, or its data set with --data and its number with --index."
        )
    if index is None:
        found = Certificate.loads(certificate.read_bytes())
    else:
        entries = {entry.index: entry for entry in read_certificates(certificate)[1]}
        if index not in entries:
            raise SettingError(f"{certificate} holds no certificate of the image number {index}.")
        found = entries[index].certificate
    predictor = Predictor.load(model, device=device, threads=threads, batch=batch)
    if image is not None:
        pixels = read_image(image, predictor.card.input)
    elif index is None:
        raise SettingError("--data needs --index, the number of the image.")
    else:
        pixels = load_images(data or "", predictor.card).read(index)
    replay = predictor.verify(found, pixels, other_model=other_model, max_flips=max_flips)
    if json:
        print_json(replay.to_json() | {"confirmed": replay.ok})
    else:
        print_text(f"{'confirmed' if replay.ok else 'NOT confirmed'}: {replay.reason}")
    raise typer.Exit(0 if replay.ok else 1)
