"""`train`: a recipe becomes a run folder. Everything that can be refused is refused before the first step."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from robustinfer.errors import RecipeError, RunError, TrainingError

from .boosting.booster import Booster, make_booster
from .data.batches import Batches
from .data.datasets import ImageData, load_data
from .machine.arithmetic import check_arithmetic
from .machine.layout import check_layout
from .machine.memory import keep_freed_memory
from .machine.processes import Processes, join_processes
from .recipe import Recipe
from .runs.curves import draw_curves
from .runs.journal import Journal, Watcher
from .runs.provenance import collect_provenance
from .runs.run import Run
from .stage.perturbations import check_perturbations, perturbation_bytes

__all__ = ["train"]

# Settings that change neither the weights nor where they come from: a run may be resumed with others.
_HARMLESS = {"name", "description", "checkpoint_seconds"}


def train(
    recipe: Recipe,
    out: str | Path,
    *,
    root: str | Path = "data",
    resume: bool = False,
    device: str = "auto",
    download: bool = False,
    watcher: Watcher | None = None,
    booster: Callable[..., Booster] = make_booster,
) -> Run:
    """Train by the recipe and return the run folder `out`; with `resume`, go on where an earlier call stopped.

    `booster` makes what trains the stages; by default what the recipe names.
    Under torchrun every process calls this; the first one writes.
    On a CPU under Linux the process keeps the memory it frees from now on, which makes steps faster.
    """
    with join_processes(device) as processes, torch.backends.cudnn.flags(deterministic=True, benchmark=False):
        keep_freed_memory(processes.device)
        whole = load_data(recipe.data, root=root, size=recipe.size, download=download)
        data, held_out = _prepare(recipe, whole, processes)
        run = _open(recipe, Path(out), data, processes, resume=resume)
        journal = Journal(run.path, watcher=watcher, write=processes.first)
        try:
            booster(run, data=data, held_out=held_out, processes=processes, journal=journal).fit()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise TrainingError(
                f"The disk that holds {run.path} is full: free some space and go on with --resume; "
                "finished stages are kept."
            ) from error
        finally:
            journal.close()
        if processes.first:
            draw_curves(run)
        return run


def _prepare(recipe: Recipe, whole: ImageData, processes: Processes) -> tuple[ImageData, ImageData]:
    """The training and the held-out images, checked against the recipe."""
    data, held_out = whole.split(recipe.validation)
    if not len(held_out):
        raise RecipeError(
            f"A validation part of {recipe.validation:g} of {len(whole)} images holds out none; raise it."
        )
    if recipe.limit:
        data = data.head(recipe.limit)
    missing = set(range(len(data.classes))) - set(data.labels.tolist())
    if missing:
        names = ", ".join(data.classes[label] for label in sorted(missing)[:5])
        raise RecipeError(f"No training image is left of these classes: {names}; raise `limit` or add images.")
    diameter = data.input.size**0.5 if recipe.norm == "l2" else 1.0
    if recipe.delta > diameter:
        raise RecipeError(
            f"No two images of {data.name} are {recipe.delta:g} apart in {recipe.norm} (at most {diameter:g} in pixel "
            "units of [0,1]); lower `delta`."
        )
    Batches(recipe, 1, data, processes)  # refuses a batch that cannot be filled or shared
    check_perturbations(recipe, data, processes)
    return data, held_out


def _open(recipe: Recipe, out: Path, data: ImageData, processes: Processes, *, resume: bool) -> Run:
    if processes.first and not (resume and (out / "recipe.toml").is_file()):
        run = _create(recipe, out, data, processes)
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
    if run.provenance.get("data_digest") != data.digest():
        raise RunError(f"{out} was trained on other data than {data.name} holds now; give another --out.")
    return run


def _create(recipe: Recipe, out: Path, data: ImageData, processes: Processes) -> Run:
    provenance = collect_provenance(recipe, data, processes)
    trial = Run(out, recipe, data.classes, data.input)
    member = trial.fresh_member(seed=0)
    check_layout(recipe, member, processes.device)  # before there is a folder; stages check again, for --resume
    check_arithmetic(recipe, processes.device)
    bytes_a_member = sum(tensor.numel() * tensor.element_size() for tensor in member.state_dict().values())
    # Each stage is kept; a checkpoint holds weights, two moments and up to two snapshots, twice while it is replaced.
    needed = bytes_a_member * (recipe.stages + 10) + 2 * perturbation_bytes(recipe, data)
    existing = next(parent for parent in (out.absolute(), *out.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise TrainingError(
            f"This training writes about {needed / 1e6:.0f} MB to {out}; only {free / 1e6:.0f} MB are free."
        )
    return Run.create(out, recipe, classes=data.classes, input=data.input, provenance=provenance)
