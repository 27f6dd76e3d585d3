"""`train`: a recipe becomes a run folder. Everything that can be refused is refused before the first step."""

import errno
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustinfer.errors import RecipeError, RunError, TrainingError
from robustinfer.files import leftovers
from robustinfer.run_folder import RunFolder

from .boosting.booster import Booster
from .boosting.registry import make_booster
from .budget import Budget, BudgetBooster, budgeted
from .data.datasets import ImageData, load_data
from .machine.memory import keep_freed_memory
from .machine.processes import Processes, join_processes
from .pace import Pace, measure_pace
from .recipe import Recipe
from .runs.curves import draw_curves
from .runs.journal import Journal, Watcher
from .runs.provenance import collect_provenance
from .runs.run import Run, save_tensors
from .stage.checks import check_stage
from .stage.perturbations import perturbation_bytes
from .starting import Start

__all__ = ["train", "train_within"]

# Fields that change neither the members nor where they come from: a run may be resumed with others.
_HARMLESS = {"name", "description", "checkpoint_seconds"}


def train(
    recipe: Recipe,
    out: str | Path,
    *,
    start: Start | None = None,
    root: str | Path = "data",
    resume: bool = False,
    device: str = "auto",
    threads: int | None = None,
    download: bool = False,
    skip_unreadable: int = 0,
    watcher: Watcher | None = None,
    announce: Callable[[Pace], None] | None = None,
    stop: Callable[[], bool] | None = None,
    booster: Callable[..., Booster] = make_booster,
) -> Run:
    """Train by the recipe and return the run folder `out`; with `resume`, resume an interrupted one.

    With `start` members start from its parameters instead of random ones, and have its architecture.
    Up to `skip_unreadable` files that cannot be read are left out.
    `threads` of torch on a CPU: None leaves them as they are, 0 takes those that the run was begun with or, for a new
    one, those that a few timed steps show to be fastest. `announce` is told what the training will take.
    As soon as `stop` answers True the training writes a checkpoint and raises `StoppedError`; it is asked after
    each step and while something is measured. `booster` makes what trains the stages; by default what the recipe names.
    Under torchrun every process calls this; the first one writes.
    On a CPU under Linux the process keeps the memory it frees from now on, which makes steps faster.
    """
    recipe = recipe if start is None else start.adapted(recipe)
    if recipe.teacher:  # a run may be resumed from another folder
        recipe = recipe.replace(teacher=str(Path(recipe.teacher).resolve()))
    joined = join_processes(device, stop) if stop is not None else join_processes(device)
    deterministic = torch.backends.cudnn.flags(deterministic=True, benchmark=False)
    with joined as processes, deterministic, _threads_as_before():
        keep_freed_memory(processes.device)
        whole = load_data(recipe.data, root=root, size=recipe.size, download=download, skip_unreadable=skip_unreadable)
        data, held_out = _parts(recipe, whole)
        member = Run(Path(out), recipe, data.classes, data.input).fresh_member(seed=0)
        check_stage(recipe, data, member, processes)
        _set_pace(recipe, Path(out), data, processes, resume=resume, threads=threads, announce=announce)
        run = _open(recipe, Path(out), data, member, processes, start=start, resume=resume)
        if processes.first:
            for file in leftovers(run.path):  # of processes that were killed: a training has its folder to itself
                file.unlink()
        journal = Journal(run.path, watcher=watcher, write=processes.first)
        try:
            booster(run, data=data, held_out=held_out, processes=processes, journal=journal).fit()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise TrainingError(
                f"The disk that holds {run.path} is full: free some space and continue with --resume; "
                "finished stages are kept."
            ) from error
        finally:
            journal.close()
        if processes.first:
            draw_curves(run)
        return run


def train_within(
    recipe: Recipe,
    out: str | Path,
    budget: Budget,
    *,
    clock: Callable[[], float] = time.monotonic,
    tell: Callable[[float, str], None] = lambda spent, words: None,
    **options: Any,
) -> Run:
    """Train for as long as a budget lasts, and let held-out images decide on what (`train/budget/rules.py`).

    A run that is resumed continues with what is left of the budget, which may be larger then. `tell` is told what is
    spent, and in words what was decided; `options` are those of `train`.
    """
    if recipe.compile and budget.unit == "operations":  # said before there is a folder
        raise RecipeError(
            "Operations cannot be counted in compiled members: give --budget a time, or set compile=false."
        )
    booster = partial(BudgetBooster, budget=budget, clock=clock, tell=tell)
    return train(budgeted(recipe), out, booster=booster, **options)


@contextmanager
def _threads_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _set_pace(
    recipe: Recipe,
    out: Path,
    data: ImageData,
    processes: Processes,
    *,
    resume: bool,
    threads: int | None,
    announce: Callable[[Pace], None] | None,
) -> None:
    """Choose the number of threads, and say what the training will take."""
    begun = RunFolder.open(out) if resume and (out / "recipe.toml").is_file() else None
    if begun is not None and threads == 0:
        threads = begun.provenance.get("machine", {}).get("threads", 0)
    if threads:
        torch.set_num_threads(threads)
    finished = len(begun.stages) if begun is not None else 0
    refused = begun is None and out.exists() and any(out.iterdir() if out.is_dir() else [out])
    if refused or finished >= recipe.stages or (announce is None and threads != 0):
        return
    pace = measure_pace(recipe, data, processes, finished=finished, choose=threads == 0)
    if pace is not None:
        torch.set_num_threads(pace.threads)
        if announce is not None:
            announce(pace)


def _parts(recipe: Recipe, whole: ImageData) -> tuple[ImageData, ImageData]:
    """The training and the held-out images, checked against the recipe."""
    data, held_out = whole.split(recipe.validation)
    if not len(held_out):
        raise RecipeError(
            f"Holding out {recipe.validation:g} of {len(whole)} images leaves none to validate on; raise `validation`."
        )
    if recipe.limit:
        data = data.head(recipe.limit)
    missing = set(range(len(data.classes))) - set(data.labels.tolist())
    if missing:
        names = ", ".join(data.classes[label] for label in sorted(missing)[:5])
        raise RecipeError(f"These classes have no training image: {names}; raise `limit` or add images.")
    diameter = data.input.size**0.5 if recipe.norm == "l2" else 1.0
    if recipe.delta > diameter:
        raise RecipeError(
            f"No two images of {data.name} are {recipe.delta:g} apart in {recipe.norm} (at most {diameter:g} in pixel "
            "units of [0,1]); lower `delta`."
        )
    return data, held_out


def _open(
    recipe: Recipe,
    out: Path,
    data: ImageData,
    member: nn.Module,
    processes: Processes,
    *,
    start: Start | None,
    resume: bool,
) -> Run:
    """A new run folder, written by the first process, or the one that is there if it fits the recipe and the data."""
    if processes.first and not (resume and (out / "recipe.toml").is_file()):
        _check_space(recipe, out, data, member)
        provenance = collect_provenance(recipe, data, processes)
        if start is not None:
            first, random = start.member(Run(out, recipe, data.classes, data.input), data)
            provenance["start"] = {**start.to_json(), "random": list(random)}
        run = Run.create(out, recipe, classes=data.classes, input=data.input, provenance=provenance)
        if start is not None:
            save_tensors(out / "start.safetensors", first.state_dict())
        processes.wait()
        return run
    processes.wait()
    run = Run.open(out)
    wanted, found = recipe.to_json(), run.recipe.to_json()
    different = [key for key in wanted if key not in _HARMLESS and wanted[key] != found[key]]
    if different:
        key = different[0]
        raise RunError(
            f"{out} is a run of another recipe: `{key}` is {found[key]!r} there and {wanted[key]!r} here; "
            "give another --out."
        )
    begun = run.provenance.get("start", {})
    if start is not None and {**begun, **start.to_json()} != begun:
        raise RunError(f"{out} was not started from {start.source}; give another --out, or resume it without --from.")
    if start is not None and processes.first and not (out / "start.safetensors").is_file():
        save_tensors(out / "start.safetensors", start.member(run, data)[0].state_dict())  # a kill came before it
    if run.provenance.get("data_digest") != data.digest():
        raise RunError(f"{out} was trained on data other than what {data.name} holds now; give another --out.")
    return run


def _check_space(recipe: Recipe, out: Path, data: ImageData, member: nn.Module) -> None:
    bytes_a_member = sum(tensor.numel() * tensor.element_size() for tensor in member.state_dict().values())
    # Each stage is kept; a checkpoint holds parameters, two moments and up to two snapshots, twice while replaced.
    needed = bytes_a_member * (recipe.stages + 10) + 2 * perturbation_bytes(recipe, data)
    existing = next(parent for parent in (out.absolute(), *out.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise TrainingError(
            f"This training writes about {needed / 1e6:.0f} MB to {out}; only {free / 1e6:.0f} MB are free."
        )
