"""Is a training that spends a budget by held-out loss as good as a schedule that was fixed before?

    python benchmarks/accuracy/budget.py --data DIR [--sets mnist,gtsrb] [--budgets 5,10,20] [--seeds 0,1,2]

Claim checked: `robust train --budget-operations` is no worse than one network of the same cost beyond noise, whichever
of two schedules that network has. Two data sets, three budgets; a budget is what so many epochs of one member cost in
floating-point operations of its training steps. Rows of equal cost:

  budget   decides slice by slice on the present member, a head or a new member (docs/training.md)
  single   one member for that many epochs, whose rate falls over all of them
  decay    the same, but the rate stays and falls over the last quarter
  boosted  a member for three fifths of them and a second one for half as long, against the first

The data and what is measured of a row: `lib/small_sets.py`. The budgeted row's judging, 16 noisy copies of up to 1,000
held-out images after every slice, is not counted by operations; the processor seconds of the table have it, and at
budgets as small as these it is a large part of them. Hardware: any CPU, one thread; the JSON names it. Repeats: one for
each seed. Rows are kept one by one: after a kill, the same command does what is missing.
"""

import argparse
import itertools
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from robust.train import Recipe
from robust.train.budget import Budget, BudgetBooster, budgeted
from robust.train.data.datasets import load_data
from robust.train.machine.processes import Processes
from robust.train.pace import step_operations

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.experiments import Row, Table, arguments, chosen_rows
from benchmarks.lib.small_sets import COPIES, measured_row, placed_recipe, small_recipe

ROWS = (
    Row("budget", "boosted", "decided slice by slice"),
    Row("single", "single", "one member, all epochs"),
    Row("decay", "single", "one member, all epochs, decay over the last quarter"),
    Row("boosted", "boosted", "boosted, three fifths of the epochs and half of that from new parameters"),
)
BOOSTED: dict[str, Any] = {"stages": 2, "growth": 0.5, "own_loss": 0.9, "warm_start": False}


def recipe_of(row: Row, name: str, *, epochs: int, seed: int) -> Recipe:
    """The recipe of a data set for a row; that of the budgeted row says nothing about stages and epochs."""
    recipe = small_recipe(name, seed=seed, name=row.name)
    if row.name == "budget":
        return budgeted(recipe)
    if row.name == "boosted":
        return recipe.replace(**BOOSTED, epochs=round(0.6 * epochs))
    return recipe.replace(epochs=epochs, schedule="decay" if row.name == "decay" else "cosine")


def operations(recipe: Recipe, epochs: int, root: Path) -> float:
    """What so many epochs of one member cost."""
    data = load_data(recipe.data, root=root).split(recipe.validation)[0].head(recipe.limit)
    return step_operations(recipe, data, Processes(torch.device("cpu"))) * epochs * (len(data) // recipe.batch)


def measured(row: Row, name: str, *, epochs: int, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train one row, export it and measure it."""
    recipe = recipe_of(row, name, epochs=epochs, seed=seed)
    amount = operations(placed_recipe(recipe, options.data), epochs, options.data)
    folder = options.runs / f"budget-{name}-{epochs}-{seed}-{row.name}"
    how: dict[str, Any] = {}
    if row.name == "budget":
        how["booster"] = partial(BudgetBooster, budget=Budget(amount, "operations"))
    _, about = measured_row(row, name, recipe, folder, options=options, **how)
    about |= {"budget": epochs, "operations": amount}
    if row.name == "budget":
        about["decisions"] = json.loads((folder / "budget.json").read_text(encoding="utf-8"))["decisions"]
    return about


def parse() -> argparse.Namespace:
    """The options."""
    parser = arguments(__doc__, "budget.json")
    # Not `signs`: it is measured on the held-out images by which a budget decides.
    parser.add_argument("--sets", default="mnist,gtsrb", help="mnist or gtsrb, or both separated by a comma")
    parser.add_argument("--budgets", default="5,10,20", help="epochs of one member, separated by commas")
    parser.set_defaults(batch=None)
    options = parser.parse_args()
    if unknown := set(options.sets.split(",")) - {"mnist", "gtsrb"}:
        parser.error(f"--sets: mnist and gtsrb have test images to compare budgets on; found {', '.join(unknown)}")
    return options


def main() -> int:
    """Train and measure what is missing."""
    options = parse()
    torch.set_num_threads(options.threads)
    table = Table(options, "budget.py", copies=COPIES)
    budgets, seeds = ([int(word) for word in words.split(",")] for words in (options.budgets, options.seeds))
    rows = chosen_rows(ROWS, options.rows)
    for seed, epochs, name, row in itertools.product(seeds, budgets, options.sets.split(","), rows):
        key = f"{name}/{epochs}/{seed}/{row.name}"
        if key not in table.rows:
            table.put(key, measured(row, name, epochs=epochs, seed=seed, options=options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
