"""`robust train`: a recipe becomes a run folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ArgumentError
from ..extras import needed
from .console import note, print_json, print_text, program
from .options import SkipUnreadable
from .recipes import recipe_lines

if TYPE_CHECKING:
    from robust.train import Budget, Run
    from robust.train.starting import Start

__all__ = ["command"]


def command(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A recipe: a .toml file, or the name of a built-in one. Without it, they are listed."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: runs/RECIPE.")] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Train on a data set other than the recipe's: folder:PATH, npz:FILE, mnist:DIR, ... (docs/data.md); "
            "or the folder that holds the recipe's.",
            show_default="the recipe's; mnist, cifar10 and imagenet are in data/",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one field of the recipe; may be repeated."),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SOURCE",
            help="Fine-tune: start from a run folder, module:factory, or a .safetensors or .pth file.",
        ),
    ] = None,
    parameters: Annotated[
        Path | None,
        typer.Option(help="File of parameters for the network of --from: .safetensors or .pth.", show_default=False),
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(help="Normalisation of --from: means per channel, e.g. 0.5,0.5,0.5.", show_default=False),
    ] = None,
    std: Annotated[
        str | None, typer.Option(help="Normalisation of --from: standard deviations per channel.", show_default=False)
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Train for this long (90s, 45m, 1h30m) and let held-out images decide what to train: the present "
            "member, a head on its trunk, or a new member (docs/training.md).",
            show_default=False,
        ),
    ] = None,
    budget_operations: Annotated[
        float | None,
        typer.Option(help="Like --budget, but counted in floating-point operations.", show_default=False),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda[:N].")] = "auto",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads for torch; 0 measures what is fastest here.")] = 0,
    download: Annotated[bool, typer.Option("--download", help="Download mnist or cifar10 if it is missing.")] = False,
    skip_unreadable: SkipUnreadable = 0,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Do not train; measure what bf16, channels_last and compile would gain here."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Train a boosted ensemble by Algorithm 1, or one of its baselines, into a run folder.

    Under `torchrun --nproc-per-node K -m robustinfer train RECIPE ...` K processes share each batch.

    [bold]robust train digits-l2 --out runs/digits-l2[/bold]
    [bold]robust train my-images.toml --set epochs=5[/bold]
    """
    if recipe is None:
        note(recipe_lines())
        raise ArgumentError(f"Give one of these recipes, or a file of your own (`{program()} recipes --new folder`).")
    with needed(extra="train", why="robust train"):
        import torch
        from robust.train import Recipe, train, train_within

    from ..data import place_data
    from .training_progress import spending, stoppable, watching

    chosen = Recipe.load(recipe).set(set_ or ())
    name, root = place_data(data, chosen.data, download=download)
    chosen = chosen.replace(data=name)
    if probe:
        from robust.train.probe import probe_options

        if threads:
            torch.set_num_threads(threads)
        report = probe_options(chosen, root=root, device=device, download=download, progress=note)
        print_json(report.to_json()) if json else print_text(report.table())
        return
    start = _start(from_, parameters, mean, std)
    folder = out if out is not None else Path("runs") / chosen.name
    options: dict[str, Any] = {
        "start": start,
        "root": root,
        "resume": resume,
        "device": device,
        "threads": threads,
        "download": download,
        "skip_unreadable": skip_unreadable,
    }
    spent = _budget(budget, budget_operations)
    if spent is not None:
        with spending(spent) as purse, stoppable(purse, folder) as stop:
            run = train_within(chosen, folder, spent, tell=purse.tell, stop=stop, **options)
        _print(run, json=json)
        return
    with watching(chosen) as watcher, stoppable(watcher, folder) as stop:
        announce = None if watcher is None else watcher.announce
        run = train(chosen, folder, watcher=watcher, announce=announce, stop=stop, **options)
    if watcher is not None:  # else another process of torchrun speaks
        _print(run, json=json)


def _budget(time: str | None, operations: float | None) -> "Budget | None":
    from robust.train import Budget

    if time is not None and operations is not None:
        raise ArgumentError("Give --budget or --budget-operations, not both.")
    if operations is not None:
        return Budget(operations, "operations")
    return None if time is None else Budget.time(time)


def _print(run: "Run", *, json: bool) -> None:
    if json:
        stages = [stage.to_json() for stage in run.stages]
        print_json({"run": str(run.path), "recipe": run.recipe.name, "stages": stages})
        return
    print_text("stage  epochs  seconds  held-out clean  held-out robust  last member alone    edge")
    for stage in run.stages:
        found = stage.metrics
        print_text(
            f"{stage.number:>5}  {found['epochs']:>6}  {stage.seconds:>7.1f}  {found['clean_accuracy']:>14.1%}  "
            f"{found['robust_accuracy']:>15.1%}  {found['member_robust_accuracy']:>17.1%}  {found['edge']:>6.2f}"
        )
    note(f"The run is in {run.path}; measure it on test images with: robust evaluate {run.path}")


def _start(source: str | None, parameters: Path | None, mean: str | None, std: str | None) -> "Start | None":
    from robust.train.starting import Start

    if source is None:
        if parameters is not None or mean is not None or std is not None:
            raise ArgumentError("--parameters, --mean and --std belong to --from, which is missing.")
        return None
    return Start(source, parameters, mean=_numbers("--mean", mean), std=_numbers("--std", std))


def _numbers(option: str, words: str | None) -> tuple[float, ...] | None:
    try:
        return None if words is None else tuple(float(word) for word in words.split(","))
    except ValueError:
        raise ArgumentError(f"{option} takes numbers, as 0.485,0.456,0.406; found {words!r}.") from None
