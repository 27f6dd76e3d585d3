"""`robust verify`: draw the samples of a certificate again."""

from pathlib import Path
from typing import Annotated

import typer

from .console import existing, note, print_json, print_text
from .options import Batch, Device, Json, Threads

__all__ = ["command"]


def command(
    certificate: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A certificate in JSON, a JSONL file and --index, or a signed model file."),
    ],
    model: Annotated[
        Path | None, typer.Option(help="The model file that made the certificate.", show_default=False)
    ] = None,
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
    key: Annotated[
        Path | None,
        typer.Option(help="Public key: FILE must be signed by it. Without --model nothing else is checked."),
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    batch: Batch = None,
    json: Json = False,
) -> None:
    """Replay a certificate: the same seed and the same model must give the same certificate.

    Exit code 0 if every field is reproduced, else 1.

    [bold]robust verify five.json --model quickstart/digits.onnx --image quickstart/images/five.png[/bold]
    """
    from ..errors import ArgumentError

    existing([certificate, *([model] if model else []), *([key] if key else [])])
    if key is not None:
        _check_signature(certificate, index, key)
        note(f"{certificate} is signed by this key.")
        if model is None:
            if json:
                print_json({"signed": True, "confirmed": None})
            return
    if model is None:
        raise ArgumentError("Give the model with --model to replay a certificate, or --key to check a signature.")
    from ..certificate import Certificate
    from ..certificate_file import read_certificates
    from ..data import load_images
    from ..images import read_image
    from ..predictor import Predictor

    if (image is not None and data is not None) or (image is None and data is None and index is None):
        raise ArgumentError(
            "Give the certified image with --image, or its data set with --data and its number with --index."
        )
    if index is None:
        found = Certificate.loads(certificate.read_bytes())
    else:
        header, found_entries = read_certificates(certificate)
        entries = {entry.index: entry for entry in found_entries}
        if index not in entries:
            raise ArgumentError(f"{certificate} holds no certificate of image {index}.")
        found = entries[index].certificate
    predictor = Predictor.load(model, device=device, threads=threads, batch=batch)
    if image is not None:
        pixels = read_image(image, predictor.card.input)
    elif index is None:
        raise ArgumentError("--data needs --index, the number of the image.")
    else:
        pixels = load_images(data or header.data, predictor.card, split=header.split or "test").read(index)
    replay = predictor.verify(found, pixels, other_model=other_model, max_flips=max_flips)
    # Certificates of 0.1 carry one sentence for all kinds of noise, which says more than some of them prove.
    proven = found.guarantee if replay.ok and not found.abstained else None
    if json:
        print_json(replay.to_json() | {"confirmed": replay.ok, "guarantee": proven})
    else:
        print_text(f"{'confirmed' if replay.ok else 'NOT confirmed'}: {replay.reason}")
        if proven is not None:
            print_text(f"proven: {proven}")
    raise typer.Exit(0 if replay.ok else 1)


def _check_signature(path: Path, index: int | None, key: Path) -> None:
    """Raise unless the file, or its line about image `index`, is signed: by a .sig file, or in a field of its own."""
    from ..certificate import read_json
    from ..certificate_file import read_certificates
    from ..errors import ArgumentError
    from ..signing import PublicKey, check_answer, check_file, check_line, check_model, signature_path

    public = PublicKey.load(key)
    if path.suffix not in {".json", ".jsonl"}:
        check_model(path, public)
    elif index is not None:
        numbers = [entry.index for entry in read_certificates(path)[1]]
        if index not in numbers:
            raise ArgumentError(f"{path} holds no certificate of image {index}.")
        check_line(path, 0, public)  # the header: `read_certificates` has compared the line with it
        check_line(path, numbers.index(index) + 1, public)
    elif path.suffix == ".json" and not signature_path(path).exists():
        try:
            document = read_json(path.read_bytes())
        except (ValueError, RecursionError):
            document = {}
        check_answer(document if isinstance(document, dict) else {}, public)
    else:
        check_file(path, public)
