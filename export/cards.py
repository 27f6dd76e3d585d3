"""The card of a run: what the run folder says, as the model file will say it."""

import os
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import torch

from robustinfer.card import Card, CardMember, Threat
from robustinfer.errors import DataError, ExportError

from .acceptance import Images, synthetic_images
from .fusion import EnsembleLike

if TYPE_CHECKING:
    from robust.train.runs.run import Run

__all__ = ["run_card", "run_images"]

_COMPARED = 8  # test images acceptance compares on


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


def run_images(run: "Run", root: str | os.PathLike[str]) -> Images:
    """The first test images of the run's data, or synthetic ones if the data is not at hand."""
    from robust.train.data.datasets import load_data

    try:
        data = load_data(run.recipe.data, split="test", root=os.fspath(root), model=run)
    except (DataError, OSError):
        return synthetic_images(run.input)
    pixels = data.take(torch.arange(min(_COMPARED, len(data)))).numpy()
    if not len(pixels) or pixels.shape[1:] != run.input.shape:
        return synthetic_images(run.input)
    return Images(f"{run.recipe.data.partition(':')[0]}:test", pixels)
