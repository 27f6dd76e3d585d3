"""`robust predict`: the smoothed label of image files, or an abstention."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..certificate import Prediction
from ..errors import ArgumentError
from ..settings import PREDICT_N
from .console import existing, note, print_json, print_text
from .options import Alpha, Batch, CardFile, Device, Domain, Json, Members, Model, N, Noise, Seed, Sigma, Threads
from .remarks import remark

__all__ = ["command"]


def command(
    model: Model,
    images: Annotated[
        list[Path] | None, typer.Argument(metavar="IMAGE", help="PNG, JPEG or npy files.", show_default=False)
    ] = None,
    n: N = PREDICT_N,
    alpha: Alpha = 0.001,
    members: Members = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Use the ensemble's own label, without noise or guarantee.")
    ] = False,
    sigma: Sigma = None,
    domain: Domain = None,
    noise: Noise = None,
    seed: Seed = None,
    card: CardFile = None,
    device: Device = "auto",
    threads: Threads = None,
    batch: Batch = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Ask a server (`robust serve`) instead: give no MODEL, only images.",
            show_default=False,
        ),
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="ROBUST_SERVE_TOKEN", help="The server's token.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Classify images with the smoothed model.

    The label is that of the smoothed classifier, and wrong with probability at most alpha; where the votes do not
    settle it, the answer is an abstention.

    [bold]robust predict quickstart/digits.onnx quickstart/images/five.png[/bold]
    [bold]robust predict --url http://127.0.0.1:8080 quickstart/images/five.png[/bold]
    """
    settings: dict[str, Any] = {
        "n": n, "alpha": alpha, "members": members, "sigma": sigma, "domain": domain, "noise": noise, "seed": seed,
    }  # fmt: skip
    if url is not None:
        from ..client import Client

        with Client(url, token=token) as client:
            for file in existing([model, *(images or [])]):
                _print(file, client.predict(file, **settings), json=json)
        return
    if not images:
        raise ArgumentError("There is no image to classify: give at least one file after the model.")
    from ..card import Card
    from ..explanations import plain_label
    from ..images import read_image
    from ..predictor import Predictor

    files = existing(images)
    given = Card.read(card) if card else None
    predictor = Predictor.load(model, device=device, threads=threads, batch=batch, card=given)
    if predictor.card.sigma is None and sigma is None and not plain:
        note("This model was not trained for smoothing: labels come without a guarantee.")
        plain = True
    for file in files:
        image = read_image(file, predictor.card.input)
        if plain:
            label, name = plain_label(predictor, image)
            found = {"image": str(file), "label": label, "class_name": name, "guarantee": None}
            print_json(found) if json else print_text(f"{file}: {name} (no guarantee)")
            continue
        prediction = predictor.predict(image, **settings)
        beside = remark(predictor, file, image, prediction)
        _print(file, prediction, json=json, plain=beside)


def _print(file: Path, prediction: Prediction, *, json: bool, **beside: Any) -> None:
    if json:
        print_json({"image": str(file)} | prediction.to_json() | beside)
    elif prediction.abstained:
        print_text(f"{file}: abstains after {prediction.samples_used} samples")
    else:
        print_text(f"{file}: {prediction.class_name} ({prediction.samples_used} samples, alpha {prediction.alpha:g})")
