"""Robust l_inf accuracy on CIFAR-10 at 8/255 with all training images, members made for speed and one-step attacks.

Claim checked: the fast member at half width (33 million multiply-adds, half a million parameters), trained on a CPU by
N-FGSM, resists PGD-20 with 10 restarts on at least 40 % of the test images; a PreActResNet-18, with seventeen times the
operations, is published at 45 to 47 % after 15 to 30 epochs of one-step training. And the question of the table: does
an ensemble of the same training cost resist more?

All rows have the fields of the recipe `cifar10-linf`, whose own row is `single-8`: they train on 49,000 images, cropped
and flipped, by Muon, here in bf16; the radius grows over the first epochs. Rows of one budget cost as much as so many
epochs of one member (the number in their names): the wider network has the inference cost of two members; a step of the
boosted second stage counts two of the first, because the attack goes through both members (`exact`). The beta of a
single network is not trained, for a network has scales of its own.

Measured: 1,000 test images (every 10th) under PGD-20 with 10 restarts and APGD-T. Hardware: any CPU; the JSON names it;
with AVX-512 bf16 an epoch takes a core 75 seconds. Repeats: one training for each seed; 95 % intervals over test
images. Rows are kept one by one: after a kill, the same command does what is missing.
"""

from typing import Any

from robust.train import Recipe

from benchmarks.lib.attacked import AttackedSet
from benchmarks.lib.experiments import Row
from benchmarks.lib.rows.budgets import rows_of_budget

BUDGETS = (4, 8, 24)  # epochs of one member
QUICK: dict[str, Any] = {"limit": 200, "epochs": 1, "stages": 1}


def _rows(budget: int) -> tuple[Row, ...]:
    return rows_of_budget(budget, first=budget // 2, second=budget // 4)


ROWS = tuple(row for budget in BUDGETS for row in _rows(budget))


def recipe_of(row: Row, *, delta: float, seed: int, quick: bool) -> Recipe:
    """The recipe of a row."""
    fields = {"precision": "bf16", **row.fields, "delta": delta, "seed": seed, "name": row.name}
    return Recipe.load("cifar10-linf").replace(**{**fields, **QUICK} if quick else fields)


SET = AttackedSet("cifar10_linf", "cifar10", ROWS, recipe_of, deltas=f"{8 / 255:.6f}")
