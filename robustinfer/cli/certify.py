"""`robust certify`: certificates for image files, or for a data set."""

from collections.abc import Iterator
from functools import partial
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
    Quantile,
    Radius,
    Seed,
    Sigma,
    SkipUnreadable,
    Split,
    Threads,
    Tolerance,
)
from .remarks import remark

__all__ = ["command", "describe", "tell_left_out"]


def command(
    model: Model,
    images: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="IMAGE|FOLDER",
            help="PNG, JPEG, PPM, WebP or npy files, or folders of them, without labels.",
            show_default=False,
        ),
    ] = None,
    n: N = CERTIFY_N,
    alpha: Alpha = 0.001,
    radius: Radius = None,
    tolerance: Tolerance = None,
    quantile: Quantile = None,
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
            help="Certify a data set with labels: digits, mnist:DIR, folder:PATH, npz:FILE, csv:FILE, ... "
            "(docs/data.md), or the folder of the data set the model was trained on.",
            show_default=False,
        ),
    ] = None,
    split: Split = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Output file: .jsonl, or .csv for images without labels.",
            show_default="certificates.jsonl of a data set, else stdout",
        ),
    ] = None,
    every: Annotated[int, typer.Option(help="Use every Nth image.", min=1)] = 1,
    limit: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of images; if the set is sorted by class, equally many of each class.",
            min=1,
            show_default=False,
        ),
    ] = None,
    skip_unreadable: SkipUnreadable = 0,
    shard: Annotated[
        str | None, typer.Option(help="This process's share of the images, i/n.", show_default="RANK/WORLD_SIZE")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Plot file for a data set.", show_default="beside the certificates"),
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    batch: Batch = None,
    json: Json = False,
) -> None:
    """Label images, and say within which radius the label cannot be changed.

    For image files, one certificate each. For a data set, certificates stream into a JSONL file (run the same command
    again to resume after an interruption), followed by a table and a plot. If a set has no train and test parts,
    every fifth image is a test image; a model that was not trained here is certified on all of it.

    [bold]robust certify quickstart/digits.onnx quickstart/images/five.png[/bold]
    [bold]robust certify quickstart/digits.onnx quickstart/images/five.png --radius 0.5[/bold]
    [bold]robust certify quickstart/digits.onnx quickstart/images --out answers.csv[/bold]
    [bold]robust certify mnist.onnx --data mnist:data --every 20 --out mnist.jsonl[/bold]
    """
    from ..card import Card
    from ..errors import ArgumentError
    from ..predictor import Predictor

    files = existing(images or [])
    if bool(files) == (data is not None):
        raise ArgumentError("Give image files, or a data set with --data.")
    given = Card.read(card) if card else None
    load = partial(Predictor.load, model, device=device, batch=batch, card=given)
    predictor = load(threads=threads)
    asked = {
        "n": n, "alpha": alpha, "radius": radius, "tolerance": tolerance, "quantile": quantile, "deadline": deadline,
        "bound": bound, "n0": n0, "sigma": sigma, "domain": domain, "noise": noise, "members": members,
    }  # fmt: skip
    settings = {name: value for name, value in asked.items() if value is not None}
    choice: dict[str, Any] = {"every": every, "limit": limit, "skip": skip_unreadable, "seed": seed}
    if data is None:
        _certify_files(predictor, files, out, settings, json, **choice)
    else:
        place = out or Path("certificates.jsonl")
        choice |= {"split": split, "shard": shard, "single": partial(load, threads=1) if threads is None else None}
        _certify_data(predictor, data, place, plot, settings, json, **choice)


def _faster(predictor: Any, single: Any) -> Any:
    """The predictor, or the one with a single thread if that is faster here: a data set takes long enough to ask."""
    from ..threads import measure_threads

    found = measure_threads(predictor, single)
    if found is None:
        return predictor
    if found.threads == 1:
        most = max(found.seconds)
        note(
            f"one thread is faster here than {most} ({found.seconds[1]:.2g} s against {found.seconds[most]:.2g} s per "
            "batch), as happens on a busy machine; set --threads to choose"
        )
    return found.predictor


def _certify_files(
    predictor: Any,
    paths: list[Path],
    out: Path | None,
    settings: dict[str, Any],
    json: bool,
    *,
    every: int,
    limit: int | None,
    skip: int,
    seed: int | None,
) -> None:
    from ..certificate_table import check_table, write_certificates
    from ..data import choose_readable, unlabelled_images

    if out is not None:
        check_table(out)
    data = unlabelled_images(paths, predictor.card)
    numbers, left_out = choose_readable(data, every=every, limit=limit, allowed=skip)
    tell_left_out(left_out)
    chosen = [int(number) for number in numbers]
    total = None if settings.keys() & {"radius", "tolerance", "deadline"} else len(chosen) * settings["n"]
    with interruptible() as stop, progress("certifying", total) as advance:
        # One image is what `Predictor.certify` is called with; more are a data set, whose seeds are derived.
        one = seed is not None and len(data) == 1
        seeds = {"seeds": [seed]} if one else {"seed": seed, "numbers": chosen}
        images = (data.read(number) for number in chosen)
        drawn = 0  # samples that belong to no certificate

        def count(samples: int) -> None:
            nonlocal drawn
            drawn += samples
            advance(samples)

        found = predictor.certify_many(images, **seeds, stop=stop, progress=count, **settings)
        plain: list[dict[str, Any]] = []

        def answers() -> Iterator[tuple[str, Any]]:
            nonlocal drawn
            for number, certificate in zip(chosen, found, strict=True):
                if not (certificate.abstained and certificate.stopped == "interrupted"):
                    drawn -= certificate.samples_used
                    file = data.files[number]
                    plain.append(remark(predictor, Path(file), data.read(number), certificate))
                    yield file, certificate

        for file, certificate in answers() if out is None else write_certificates(out, answers()):
            if json:
                print_json({"file": file, "plain": plain[-1]} | certificate.to_json())
            elif out is None:
                print_text(f"{file}: {describe(certificate)}")
    done = len(plain)
    if out is not None:
        note(f"{done} certificates are in {out}.")
    if stop.is_set():
        cut = len(chosen) - done
        note(f"Stopped: {cut} of {len(chosen)} images have no certificate; {drawn} samples were drawn for them.")
        raise typer.Exit(130)


def describe(certificate: Any) -> str:
    """A certificate on one line."""
    from ..smoothing.bounds import format_radius

    used = f"{certificate.samples_used} samples, {certificate.stopped}"
    if certificate.abstained:
        return f"abstains ({used})"
    return f"{certificate.class_name}, radius {format_radius(certificate.radius, 4)} ({used})"


def tell_left_out(left_out: dict[int, str]) -> None:
    """Name and count the files that are left out because they cannot be read."""
    for sentence in left_out.values():
        note(f"left out: {sentence}")
    if left_out:
        note(f"Unreadable files left out: {len(left_out)}.")


def _certify_data(
    predictor: Any,
    data: str,
    out: Path,
    plot: Path | None,
    settings: dict[str, Any],
    json: bool,
    *,
    single: Any,
    split: str,
    shard: str | None,
    every: int,
    limit: int | None,
    skip: int,
    seed: int | None,
) -> None:
    from ..certificate_file import certify_data, shard_path
    from ..data import choose_readable, load_images, parse_shard
    from .summary import show

    part = parse_shard(shard)
    path = shard_path(out, part)
    images = load_images(data, predictor.card, split=split)
    if images.rule:
        note(f"{images.rule} Choose another part with --split train, test or all.")
    numbers, left_out = choose_readable(images, every=every, limit=limit, allowed=skip)
    tell_left_out(left_out)
    count = len(numbers[part[0] :: part[1]])
    if single is not None:  # timed only now that there is something to certify
        predictor = _faster(predictor, single)
    choice: dict[str, Any] = {"every": every, "numbers": numbers, "shard": part, "seed": seed}
    with interruptible() as stop, progress(f"certifying {count} images", count) as advance:
        done = sum(1 for _ in certify_data(predictor, images, path, stop=stop, progress=advance, **choice, **settings))
    if done < count:
        note(f"Stopped after {done} of {count} images, which are in {path}: run the same command again to resume.")
        raise typer.Exit(130)
    if part[1] > 1:
        note(f"Shard {part[0]} of {part[1]} is in {path}; all shards: robust summary {out.stem}-*{out.suffix}")
    show([path], plot=plot, json=json, radii=None)
