"""The card of a run: what the run folder says, as the model file will say it."""

import os
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from robustinfer.card import Card, CardMember, Threat
from robustinfer.errors import DataError, ExportError

from .acceptance import HeldOut, Images, synthetic_images
from .fusion import EnsembleLike

if TYPE_CHECKING:
    from robust.train.data.datasets import ImageData
    from robust.train.runs.run import Run

__all__ = ["fitting_images", "held_out_images", "run_card", "run_images"]

_COMPARED = 8  # test images acceptance compares on
_FITTED = 500  # held-out images on which the rule of a cascade is fitted
_MEASURED = 50  # test images on which two files are certified side by side


def run_card(
    run: "Run",
    ensemble: EnsembleLike,
    *,
    stages: int | None,
    name: str | None,
    version: str,
    license: str | None,
    author: str | None,
) -> Card:
    """The card of the first `stages` stages of a run."""
    recipe, kept = run.recipe, run.kept(stages)
    if len(kept) != len(ensemble.members):
        raise ExportError(f"The run names {len(kept)} members, but its ensemble has {len(ensemble.members)}.")
    architectures = {stage.number: stage.architecture for stage in run.stages}
    members = tuple(
        CardMember(architecture=architectures[number], beta=float(beta), stage=number)
        for number, beta in zip(kept, ensemble.betas, strict=True)
    )
    threat = recipe.threat
    return Card(
        classes=run.classes,
        input=run.input,
        name=name or recipe.name,
        version=version,
        sigma=recipe.sigma if recipe.smoothed and recipe.sigma > 0 else None,
        threat=Threat(threat.norm, threat.delta) if threat.delta > 0 else None,
        members=members,
        training=_training(run) | ({"author": author} if author else {}),
        evaluation=run.evaluation,
        license=license,
    )


def _training(run: "Run") -> dict[str, Any]:
    """Recipe and provenance, without the paths of the machine that trained: `folder:/home/me/cats` is `folder:cats`."""
    recipe = run.recipe.to_json()
    kind, separator, path = str(recipe["data"]).partition(":")
    if separator:
        recipe["data"] = f"{kind}:{PurePath(path).name}"
    facts = {key: value for key, value in run.provenance.items() if key not in ("classes", "input")}
    if isinstance(facts.get("data"), str):
        facts["data"] = recipe["data"]
    return {**facts, "recipe": recipe, "seed": run.recipe.seed}


def run_images(
    run: "Run", root: str | os.PathLike[str], *, split: str = "test", count: int = _COMPARED, required: bool = False
) -> Images | None:
    """The first images of a split of the run's data; if it is not available synthetic ones, or None if `required`."""
    data = _data(run, root, split)
    if data is None:
        return None if required else synthetic_images(run.input)
    return Images(f"{run.recipe.data.partition(':')[0]}:{split}", data.take(_spread(data, count)).numpy())


def held_out_images(run: "Run", root: str | os.PathLike[str], count: int = _MEASURED) -> HeldOut | None:
    """Test images with their labels, evenly over the whole, or None if the run's data is not available."""
    data = _data(run, root, "test")
    if data is None:
        return None
    chosen = _spread(data, count)
    labels = data.labels[chosen].numpy().astype(np.int64)
    return HeldOut(f"{run.recipe.data.partition(':')[0]}:test", data.take(chosen).numpy(), labels)


def fitting_images(run: "Run", root: str | os.PathLike[str], count: int = _FITTED) -> Images:
    """Images of the training data that the training held out, evenly over the whole."""
    try:
        data = _load(run, root, "train")
    except (DataError, OSError) as error:
        raise ExportError(
            f"A cascade is fitted on images that the training held out, and its data ({run.recipe.data}) cannot be "
            f"read: {error} Name its folder with --data."
        ) from error
    _, held_out = data.split(run.recipe.validation)
    return Images(
        f"{run.recipe.data.partition(':')[0]}:train, held out", held_out.take(_spread(held_out, count)).numpy()
    )


def _spread(data: "ImageData", count: int) -> torch.Tensor:
    """Numbers of the first images for a few, of images all over the data for many: data may be sorted by class."""
    if count <= _COMPARED:
        return torch.arange(min(count, len(data)))
    return torch.arange(0, len(data), max(1, len(data) // count))[:count]


def _data(run: "Run", root: str | os.PathLike[str], split: str) -> "ImageData | None":
    try:
        return _load(run, root, split)
    except (DataError, OSError):
        return None


def _load(run: "Run", root: str | os.PathLike[str], split: str) -> "ImageData":
    from robust.train.data.datasets import load_data

    data = load_data(run.recipe.data, split=split, root=os.fspath(root), model=run)
    shape = tuple(data.take(torch.arange(min(1, len(data)))).shape[1:])
    if not len(data) or shape != run.input.shape:
        raise DataError(f"Expected images of shape {run.input.shape}, found {len(data)} of shape {shape}.")
    return data
