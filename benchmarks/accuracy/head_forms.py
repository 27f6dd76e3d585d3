"""Where is a network split, and what are its heads trained on, to keep most of what a second whole member gains?

    python benchmarks/accuracy/head_forms.py --data DIR [--runs DIR] [--quick]

No claim but a choice: the best form is what `share = "trunk"` recommends and what the row `heads` of the traffic signs
has. One fast member at half width is trained on 2,600 traffic signs with noise of sigma 0.25 for 12 epochs, once; every
row adds two more to it, of 7 and 4 epochs: whole members, or heads on its frozen trunk of one or two groups, with a
share of their own loss in the objective of Algorithm 1 (0 is the paper's, 1 is a head that ignores the others).

Measured on all held-out images, whose tracks no training has seen: 12 noisy copies of each, the same noise for all
rows, so that differences from the first member alone are paired by image. Processor seconds are those of the members
that were added; MMAC are those of a sample by the whole ensemble. Hardware: any CPU, one thread; the JSON names it.
Repeats: one for each seed. Rows are kept one by one: after a kill, the same command does what is missing.
"""

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from robust.export.fusion import fuse
from robust.train import Recipe, Run
from robust.train.data.datasets import ImageData, load_data
from torch.utils.flop_counter import FlopCounterMode

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.experiments import Row, Table, arguments, chosen_rows, history, trained
from benchmarks.lib.small_sets import HELD_OUT_COPIES, held_out_noise
from robustinfer.data import place_data

COMMON: dict[str, Any] = {"limit": 2600, "epochs": 12, "growth": 0.6, "warm_start": False, "delta": 0.0}
WHOLE: dict[str, Any] = {"stages": 3, "own_loss": 0.9}


def _heads(split: int, own_loss: float) -> Row:
    label = f"two heads, {split} of 3 groups in the trunk, own loss {own_loss:g}"
    return Row(
        f"split-{split}-{own_loss:g}",
        "boosted",
        label,
        {**WHOLE, "own_loss": own_loss, "share": "trunk", "split": split},
    )


FIRST = Row("first", "single", "the first member alone", {"stages": 1})
ROWS = (
    FIRST,
    Row("whole", "boosted", "two whole members, own loss 0.9", WHOLE),
    *(_heads(2, own_loss) for own_loss in (0.0, 0.5, 0.9, 1.0)),
    *(_heads(1, own_loss) for own_loss in (0.5, 0.9)),
)


def recipe_of(row: Row, *, seed: int, quick: bool) -> Recipe:
    """The recipe of a row: that of the traffic signs, with fewer images."""
    fields = {**COMMON, **row.fields, "seed": seed, "name": row.name}
    return Recipe.load("gtsrb-l2").replace(**{**fields, "epochs": 1} if quick else fields)


def begin(folder: Path, recipe: Recipe, first: Run) -> None:
    """A run folder of this recipe whose first stage is that of the run `first`."""
    if (folder / "recipe.toml").is_file():
        return
    Run.create(folder, recipe, classes=first.classes, input=first.input, provenance=first.provenance)
    for file in first.path.glob("stage-01.*"):
        shutil.copy(file, folder)


def operations(run: Run) -> float:
    """Multiplications of one sample, in millions: a shared trunk is computed once, as in a model file."""
    fused = fuse(run.ensemble(), run.input)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        fused(torch.zeros(1, *run.input.shape))
    return counter.get_total_flops() / 2e6


def measured(row: Row, *, seed: int, options: argparse.Namespace, held_out: ImageData) -> dict[str, Any]:
    """Train one row on top of the first member, and measure it."""
    place = place_data(str(options.data), recipe_of(row, seed=seed, quick=False).data)[0]
    recipes = {one.name: recipe_of(one, seed=seed, quick=options.quick).replace(data=place) for one in (FIRST, row)}
    home = options.runs / f"heads-{seed}"
    first, cost = trained(recipes[FIRST.name], home / FIRST.name, data=options.data)
    run = first
    if row is not FIRST:
        begin(home / row.name, recipes[row.name], first)
        run, cost = trained(recipes[row.name], home / row.name, data=options.data)
    about = {**row.about, "sigma": run.recipe.sigma, "seed": seed, **history(run, cost)}
    about["recipe"]["data"] = recipe_of(row, seed=seed, quick=False).data  # wherever it lay
    return about | {"noise": held_out_noise(run, held_out), "mmac": operations(run)}


def main() -> int:
    """Train and measure what is missing."""
    options = arguments(__doc__, "head_forms.json").parse_args()
    torch.set_num_threads(options.threads)
    recipe = recipe_of(FIRST, seed=0, quick=False)
    held_out = load_data(place_data(str(options.data), recipe.data)[0], root=options.data).split(recipe.validation)[1]
    held_out = held_out.subset(torch.arange(0, len(held_out), 20 if options.quick else 1))
    table = Table(options, "head_forms.py", held_out_images=len(held_out), copies=HELD_OUT_COPIES)
    for row in chosen_rows(ROWS, options.rows):
        for seed in (int(word) for word in options.seeds.split(",")):
            key = f"{seed}/{row.name}"
            if key not in table.rows:
                table.put(key, measured(row, seed=seed, options=options, held_out=held_out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
