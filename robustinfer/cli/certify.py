"""`robust certify`: certificates for image files, or for a data set."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..settings import CERTIFY_N
from .console import existing, interruptible, note, print_json, print_text, progress
from .options import (
    N0,
    Alpha,
    Batch,
    Bound,
    CardFile,
    Deadline,
    Device,
    Domain,
    Json,
    Members,
    Model,
    N,
    Noise,
    Radius,
    Seed,
    Sigma,
    Threads,
    Tolerance,
)
from .remarks import remark

__all__ = ["command"]


def command(
    model: Model,
    images: Annotated[
        list[Path] | None, typer.Argument(metavar="[IMAGE...]", help="PNG, JPEG or npy files.", show_default=False)
    ] = None,
    n: N = CERTIFY_N,
    alpha: Alpha = 0.001,
    radius: Radius = None,
    tolerance: Tolerance = None,
    deadline: Deadline = None,
    bound: Bound = None,
    n0: N0 = None,
    members: Members = None,
    sigma: Sigma = None,
    domain: Domain = None,
    noise: Noise = None,
    seed: Seed = None,
    card: CardFile = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Certify a data set: digits, mnist:DIR, cifar10:DIR, folder:PATH, npz:PATH, or the folder of the data "
            "set the model was trained on.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Output file of a data set.")] = Path("certificates.jsonl"),
    every: Annotated[int, typer.Option(help="Use every Nth image of the data set.", min=1)] = 1,
    limit: Annotated[int | None, typer.Option(help="Maximum number of images.", min=1, show_default=False)] = None,
    shard: Annotated[
        str | None, typer.Option(help="This process's share of the images, i/n.", show_default="RANK/WORLD_SIZE")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Plot of a data set.", show_default="beside the certificates"),
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    batch: Batch = None,
    json: Json = False,
) -> None:
    """Label images, and say within which radius the label cannot be changed.

    For image files, one certificate each. For a data set, certificates stream into a JSONL file (run the same command
    again to resume after an interruption), followed by a table and a plot.

    [bold]robust certify quickstart/digits.onnx quickstart/images/five.png[/bold]
    [bold]robust certify quickstart/digits.onnx quickstart/images/five.png --radius 0.5[/bold]
    [bold]robust certify mnist.onnx --data mnist:data --every 20 --out mnist.jsonl[/bold]
    """
    from ..card import Card
    from ..errors import SettingError
    from ..predictor import Predictor

    files = existing(images or [])
    if bool(files) == (data is not None):
        raise SettingError("Give image files, or a data set with --data.")
    given = Card.read(card) if card else None
    predictor = Predictor.load(model, device=device, threads=threads, batch=batch, card=given)
    asked = {
        "n": n, "alpha": alpha, "radius": radius, "tolerance": tolerance, "deadline": deadline,
        "bound": bound, "n0": n0, "sigma": sigma, "domain": domain, "noise": noise, "members": members,
    }  # fmt: skip
    settings = {name: value for name, value in asked.items() if value is not None}
    if data is None:
        _certify_files(predictor, files, settings, seed, json)
    else:
        _certify_data(predictor, data, out, plot, settings, seed, json, every=every, limit=limit, shard=shard)


def _certify_files(predictor: Any, files: list[Path], settings: dict[str, Any], seed: int | None, json: bool) -> None:
    from ..images import read_image

    images = [read_image(file, predictor.card.input) for file in files]
    total = None if settings.keys() & {"radius", "tolerance", "deadline"} else len(files) * settings["n"]
    with interruptible() as stop, progress("certifying", total) as advance:
        # One image is what `Predictor.certify` is called with; more are a data set, whose seeds are derived.
        seeds = {"seeds": [seed]} if seed is not None and len(files) == 1 else {"seed": seed}
        certificates = predictor.certify_many(images, **seeds, stop=stop, progress=advance, **settings)
        unfinished = 0
        for file, image, certificate in zip(files, images, certificates, strict=True):
            if certificate.abstained and certificate.stopped == "interrupted":
                unfinished += 1
                continue
            plain = remark(predictor, file, image, certificate)
            if json:
                print_json({"file": str(file), "plain": plain} | certificate.to_json())
            else:
                print_text(f"{file}: {describe(certificate)}")
    if stop.is_set():
        note(f"Stopped: {unfinished} of {len(files)} images have no certificate.")
        raise typer.Exit(130)


def describe(certificate: Any) -> str:
    """A certificate on one line."""
    from ..smoothing.bounds import format_radius

    used = f"{certificate.samples_used} samples, {certificate.stopped}"
    if certificate.abstained:
        return f"abstains ({used})"
    return f"{certificate.class_name}, radius {format_radius(certificate.radius, 4)} ({used})"


def _certify_data(
    predictor: Any,
    data: str,
    out: Path,
    plot: Path | None,
    settings: dict[str, Any],
    seed: int | None,
    json: bool,
    *,
    every: int,
    limit: int | None,
    shard: str | None,
) -> None:
    from ..certificate_file import certify_data, shard_path
    from ..data import load_images, parse_shard
    from .summary import show

    part = parse_shard(shard)
    path = shard_path(out, part)
    images = load_images(data, predictor.card)
    count = len(range(0, len(images), every)[:limit][part[0] :: part[1]])
    choice: dict[str, Any] = {"every": every, "limit": limit, "shard": part, "seed": seed}
    with interruptible() as stop, progress(f"certifying {count} images", count) as advance:
        done = sum(1 for _ in certify_data(predictor, images, path, stop=stop, progress=advance, **choice, **settings))
    if done < count:
        note(f"Stopped after {done} of {count} images, which are in {path}: run the same command again to resume.")
        raise typer.Exit(130)
    if part[1] > 1:
        note(f"Shard {part[0]} of {part[1]} is in {path}; all together: robust summary {out.stem}-*{out.suffix}")
    show([path], plot=plot, json=json, radii=None)
