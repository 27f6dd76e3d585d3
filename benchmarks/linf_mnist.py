"""Robust l_inf accuracy on MNIST: which form of boosting beats what, at equal member and equal cost.

    python benchmarks/linf_mnist.py --data DIR [--deltas 0.3,0.1] [--seeds 0] [--runs DIR] [--quick]

Claim checked: the paper's "better robust accuracy than one PGD-trained network, at a lower training cost", against the
rivals it does not name: independent members averaged, one wider network of the same inference cost, and the ensemble's
own last member. Every row has the same member (the small CNN at width 0.25), the same training images, PGD-7 and Adam.

Hardware: any CPU; the JSON names it. Repeats: one training for each seed and radius; 95 % intervals over test images.
The clock is that of a shared machine, so processor seconds are kept beside it. Choices between forms of boosting were
made on held-out training images; the test images are only measured here. Rows are kept one by one: run the command
again after a kill and it goes on.
"""

import argparse
import itertools
import sys
from typing import Any

import torch
from experiments import Row, Table, arguments, history, trained
from robust.train import Ensemble, Recipe, Run
from robust.train.data import ImageData, load_data
from robust.train.measure import PgdAttack, measure
from robust.train.processes import Processes
from robust.train.rates import Rate
from robust.train.strong import measure_strong

COMMON: dict[str, Any] = {
    "data": "mnist",
    "norm": "linf",
    "architecture": "cnn",
    "width": 0.25,
    "limit": 5000,
    "validation": 0.02,
    "validation_images": 200,
    "ramp": 1.0,
    "optimizer": "adam",
    "learning_rate": 0.003,
    "batch": 50,
}
BOOSTED: dict[str, Any] = {"stages": 3, "epochs": 1, "growth": 2}
EQUAL: dict[str, Any] = {"stages": 3, "epochs": 3, "growth": 1, "previous": "exact", "weights": "corrective"}
ROWS = (
    Row("single", "one member, 7 epochs (as many as boosting)", {"stages": 1, "epochs": 7}),
    Row("single-18", "one member, 18 epochs (the cost of `exact`)", {"stages": 1, "epochs": 18}),
    Row("wider", "one network of three members' inference cost, 7 epochs", {"stages": 1, "epochs": 7, "width": 0.47}),
    Row("independent", "3 independent, averaged, 6 epochs each", {**EQUAL, "epochs": 6, "booster": "independent"}),
    *(
        Row(f"{p}-{w}", f"boosted 1+2+4 epochs, `{p}`, `{w}`", {**BOOSTED, "previous": p, "weights": w})
        for p in ("clean", "adversarial", "exact")
        for w in ("trained", "corrective")
    ),
    Row("equal-stages", "boosted 3+3+3 epochs, `exact`, `corrective`", EQUAL),
)
QUICK = {"limit": 500, "epochs": 1, "growth": 1}


def recipe_of(row: Row, *, delta: float, seed: int, quick: bool) -> Recipe:
    """The recipe of a row."""
    settings = {**COMMON, **row.settings, "delta": delta, "seed": seed, "name": row.name}
    return Recipe.from_json({**settings, **QUICK} if quick else settings)


def attacked(model: Ensemble, data: ImageData, attack: str, recipe: Recipe, *, seed: int) -> dict[str, Any]:
    """Clean accuracy and accuracy under one attack, each with its interval."""
    device = torch.device("cpu")
    if attack == "pgd-20x10":
        pgd = PgdAttack.of(recipe, steps=20, restarts=10)
        found = measure(model, data, pgd, classes=10, processes=Processes(device), seed=(seed, 5))
    else:
        found = measure_strong(model, data, attack, norm="linf", delta=recipe.delta, seed=seed, device=device)
    return {"clean": Rate(found.clean, len(data)).to_json(), attack: Rate(found.robust, len(data)).to_json()}


def parts(run: Run) -> dict[str, Ensemble]:
    """What is measured of a run: the ensemble, and its last member alone."""
    found = {"ensemble": run.ensemble()}
    if len(run.stages) > 1:
        found["last_member"] = Ensemble([run.member(len(run.stages))], [1.0]).freeze()
    return found


def measured(row: dict[str, Any], run: Run, data: ImageData, attack: str) -> dict[str, Any]:
    """The row with this attack measured."""
    recipe = run.recipe
    for name, model in parts(run).items():
        row[name] = {**row.get(name, {}), **attacked(model, data, attack, recipe, seed=recipe.seed)}
    return row


def main() -> int:
    """Train and measure what is missing."""
    parser = arguments(__doc__, "linf_mnist.json")
    parser.add_argument("--deltas", default="0.3,0.1", help="radii of the threat")
    parser.add_argument("--attacks", default="pgd-20x10,apgd-t", help="attacks, each over all rows before the next")
    parser.add_argument("--images", type=int, default=1000, help="test images, evenly spread over the test set")
    options: argparse.Namespace = parser.parse_args()
    torch.set_num_threads(options.threads)
    test = load_data("mnist", split="test", root=options.data)
    count = 50 if options.quick else options.images
    test = test.subset(torch.arange(0, len(test), len(test) // count))
    table = Table(options, test_images=len(test))
    chosen = [row for row in ROWS if not options.rows or row.name in options.rows.split(",")]
    numbers = ([float(word) for word in options.deltas.split(",")], [int(word) for word in options.seeds.split(",")])
    for attack, delta, seed, row in itertools.product(options.attacks.split(","), *numbers, chosen):
        key = f"{delta:g}/{seed}/{row.name}"
        kept = table.rows.get(key, {})
        if attack in kept.get("ensemble", {}):
            continue
        recipe = recipe_of(row, delta=delta, seed=seed, quick=options.quick)
        run, cost = trained(recipe, options.runs / f"linf-{key.replace('/', '-')}", data=options.data)
        about = {"name": row.name, "label": row.label, "delta": delta, "seed": seed}
        table.put(key, measured(about | history(run, cost) | kept, run, test, attack))
    return 0


if __name__ == "__main__":
    sys.exit(main())
