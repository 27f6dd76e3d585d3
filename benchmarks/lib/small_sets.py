"""Training sets on which ways to spend a training are compared, in minutes a row.

MNIST: the recipe `mnist-l2` on 5,000 images; traffic signs: `gtsrb-l2` on 2,600. Rows are measured on their exported
files: 30 noisy copies of each 10th test image of MNIST (1,000) and each 4th traffic sign (1,053). `signs` is `gtsrb-l2`
on all its images, for what becomes its default: measured on 12 noisy copies of all held-out images, whose tracks no
training has seen. The noise is the same for all rows, so that differences are paired by image.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from robust.train import Recipe
from robust.train.data.datasets import ImageData, load_data
from robust.train.evaluation.certified import memory_predictor
from robust.train.runs.run import Run

from benchmarks.lib.certified import exported, noisy_answers, under_noise
from benchmarks.lib.experiments import Row, history, trained
from robustinfer.data import place_data

__all__ = ["COPIES", "HELD_OUT_COPIES", "SETS", "held_out_noise", "measured_row", "placed_recipe", "small_recipe"]

COPIES, HELD_OUT_COPIES = 30, 12
# A set's recipe, what it changes in it, and its stride through the test images; 0: all held-out images instead.
# Nothing is attacked where held-out images are measured: it is not asked here.
SETS: dict[str, tuple[str, dict[str, Any], int]] = {
    "mnist": ("mnist-l2", {"limit": 5000, "delta": 0.0}, 10),
    "gtsrb": ("gtsrb-l2", {"limit": 2600, "delta": 0.0}, 4),
    "signs": ("gtsrb-l2", {"delta": 0.0}, 0),
}


def small_recipe(data: str, **fields: Any) -> Recipe:
    """The built-in recipe of a set, with these fields."""
    name, changes, _ = SETS[data]
    return Recipe.load(name).replace(**{**changes, **fields})


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
    every = SETS[name][2]
    if not every:
        placed = placed_recipe(recipe, options.data)
        held_out = load_data(placed.data, root=options.data).split(recipe.validation)[1]
        return run, about | {"noise": held_out_noise(run, held_out.head(20) if options.quick else held_out)}
    model, path = exported(run, folder, data=options.data), folder.with_name(f"{folder.name}-noise.jsonl")
    every = 200 if options.quick else every
    found = under_noise(model, path, copies=COPIES, every=every, data=recipe.data, options=options)
    return run, about | {"noise": found}


def held_out_noise(run: Run, data: ImageData) -> dict[str, Any]:
    """How many noisy copies of each held-out image are labelled right."""
    predictor = memory_predictor(
        run.ensemble(), classes=run.classes, input=run.input, sigma=run.recipe.sigma, device=torch.device("cpu")
    )
    images, copies = data.take(torch.arange(len(data))).numpy(), HELD_OUT_COPIES
    drawn = predictor.certify_many(images, n=copies, n0=1, alpha=0.001, seed=0)
    counts = [found.counts[int(label)] for found, label in zip(drawn, data.labels, strict=True)]
    return noisy_answers(counts, copies)
