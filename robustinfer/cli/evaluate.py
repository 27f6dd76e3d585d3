"""`robust evaluate`: clean, attacked and certified accuracy on test images."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ArgumentError
from ..extras import needed
from .console import note, print_json, print_text, progress
from .options import SkipUnreadable, Split

__all__ = ["command"]


def command(
    target: Annotated[Path, typer.Argument(help="A run folder, or a model file (.onnx, .pt, .pt2).")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Test images: digits, mnist:DIR, folder:PATH, npz:FILE, csv:FILE, ... (docs/data.md), or the folder "
            "of the data set the model was trained on.",
            show_default="what it was trained on",
        ),
    ] = None,
    split: Split = "auto",
    skip_unreadable: SkipUnreadable = 0,
    attack: Annotated[str, typer.Option(help="pgd, apgd-ce, apgd-t, autoattack, or none.")] = "pgd",
    delta: Annotated[
        float | None, typer.Option(help="Radius of the attack, in pixel units.", show_default="the model's threat")
    ] = None,
    steps: Annotated[int, typer.Option(help="Number of pgd steps, each 1.3 delta/steps long.", min=1)] = 20,
    restarts: Annotated[
        int, typer.Option(help="Random restarts of pgd; an image is robust if all of them fail.", min=1)
    ] = 10,
    images: Annotated[
        int | None, typer.Option(help="Number of test images, always the same ones.", min=1, show_default="all")
    ] = None,
    prefixes: Annotated[
        bool, typer.Option("--prefixes/--final", help="Measure every prefix of the stages, or all stages only.")
    ] = True,
    certify: Annotated[
        bool, typer.Option("--certify/--no-certify", help="Also measure certified accuracy of a smoothed model.")
    ] = True,
    n: Annotated[int, typer.Option(help="Samples per image for certified accuracy.", min=10)] = 1000,
    alpha: Annotated[float, typer.Option(help="Maximum probability that a certificate is wrong.")] = 0.001,
    seed: Annotated[int, typer.Option(help="Seed of the attack's random restarts and of the noise.", min=0)] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda[:N].")] = "auto",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads for torch; 0 lets torch choose.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Measure accuracy on test images: clean, under attack, and certified for a smoothed model.

    A run is measured after each of its stages, and its last member alone; the result is kept in its evaluation.json.

    [bold]robust evaluate runs/digits-l2[/bold]
    [bold]robust evaluate quickstart/digits.onnx --attack none --n 10000[/bold]
    """
    with needed(extra="train", why="robust evaluate"):
        import torch
        from robust.train.evaluation.evaluation import (
            EvaluationOptions,
            evaluate_model,
            evaluate_run,
            load_test_images,
        )
        from robust.train.machine.processes import choose_device
        from robust.train.runs.run import Run

    from ..predictor import Predictor

    if threads:
        torch.set_num_threads(threads)
    options = EvaluationOptions(
        attack=attack,
        delta=delta,
        steps=steps,
        restarts=restarts,
        certify=certify,
        n=n,
        alpha=alpha,
        seed=seed,
        prefixes=prefixes,
    )
    chosen = choose_device(device)
    if not target.exists():
        raise ArgumentError(f"{target} is not a run folder or a model file.")
    reading: dict[str, Any] = {"images": images, "split": split, "skip_unreadable": skip_unreadable}
    if target.is_dir():
        run = Run.open(target)
        found = load_test_images(data, run.recipe.data, model=run, **reading)
        parts = (len(run.stages) if prefixes else 1) + (len(run.stages) > 1)
        passes = 2 if certify and run.recipe.smoothed else 1
        with progress("evaluate", total=parts * passes * len(found)) as advance:
            result = evaluate_run(run, found, options, device=chosen, progress=lambda _, done: advance(done))
    else:
        card = Predictor.load(target).card
        recipe = dict(card.training.get("recipe") or {})
        if data is None and not recipe:
            raise ArgumentError(f"{target.name} does not say what it was trained on: give test images with --data.")
        found = load_test_images(data, str(recipe.get("data", "")), model=card, foreign=not recipe, **reading)
        with progress("evaluate", total=len(found)) as advance:
            result = evaluate_model(target, found, options, device=chosen, progress=lambda _, done: advance(done))
    if found.rule:
        note(f"{found.rule} Choose another part with --split train, test or all.")
    if attack != "none" and result.attack == "none":
        note(f"{target.name} was not attacked: torch cannot differentiate it. Give the run folder or a .pt file.")
    print_json(result.to_json()) if json else _print_table(result)


def _print_table(result: Any) -> None:
    from ..smoothing.bounds import format_radius

    note(f"{result.images} test images of {result.data}, 95 % Clopper-Pearson intervals")
    header = f"{result.attack}, {result.norm} {result.delta:g}" if result.attack != "none" else "not attacked"
    print_text(f"{'':<20}  {'clean':<22}  {header:<22}  seconds")
    for row in result.rows:
        robust = "" if row.robust is None else str(row.robust)
        print_text(f"{row.what:<20}  {row.clean!s:<22}  {robust:<22}  {row.seconds:>7.1f}")
    for row in result.rows:
        if row.certified is not None:
            average = format_radius(row.certified["average_radius"])
            at = "  ".join(f"{point['radius']:g}: {100 * point['rate']:.1f} %" for point in row.certified["accuracy"])
            print_text(f"{row.what:<20}  certified at l2 radius  {at}  (average {average})")
