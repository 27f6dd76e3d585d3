"""Small training sets on which ways to spend a training are compared, in minutes a row.

MNIST: the recipe `mnist-l2` on 5,000 images; traffic signs: `gtsrb-l2` on 2,600. Rows are measured on their exported
files: 30 noisy copies of each 10th test image of MNIST (1,000) and each 4th traffic sign (1,053); the noise is the same
for all rows, so that differences are paired by image.
"""

import argparse
from pathlib import Path
from typing import Any

from robust.train import Recipe
from robust.train.runs.run import Run

from benchmarks.lib.certified import exported, under_noise
from benchmarks.lib.experiments import Row, history, trained
from robustinfer.data import place_data

__all__ = ["COPIES", "SETS", "measured_row", "placed_recipe", "small_recipe"]

COPIES = 30
# Nothing is attacked where held-out images are measured: it is not asked here.
SETS: dict[str, tuple[dict[str, Any], int]] = {
    "mnist": ({"limit": 5000, "delta": 0.0}, 10),
    "gtsrb": ({"limit": 2600, "delta": 0.0}, 4),
}


def small_recipe(data: str, **fields: Any) -> Recipe:
    """The built-in recipe of a data set on its small training set, with these fields."""
    return Recipe.load(f"{data}-l2").replace(**{**SETS[data][0], **fields})


def placed_recipe(recipe: Recipe, root: Path) -> Recipe:
    """The recipe whose data is where the data sets are, if it names a file."""
    return recipe.replace(data=place_data(str(root), recipe.data)[0]) if ":" in recipe.data else recipe


def measured_row(
    row: Row, name: str, recipe: Recipe, folder: Path, *, options: argparse.Namespace, **how: Any
) -> tuple[Run, dict[str, Any]]:
    """The run of a row and what there is to say of it: how it was trained, and how it is right under noise.

    `how` are further options of `train`.
    """
    run, cost = trained(placed_recipe(recipe, options.data), folder, data=options.data, **how)
    about = {**row.about, "data": name, "seed": recipe.seed, **history(run, cost)}
    about["recipe"]["data"] = recipe.data  # wherever it lay
    model, path = exported(run, folder, data=options.data), folder.with_name(f"{folder.name}-noise.jsonl")
    every = 200 if options.quick else SETS[name][1]
    found = under_noise(model, path, copies=COPIES, every=every, data=recipe.data, options=options)
    return run, about | {"noise": found}
