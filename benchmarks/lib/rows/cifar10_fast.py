"""Certified l_2 accuracy on CIFAR-10 with all training images and members made for speed, at several training costs.

Claim checked: the fast member at half width (33 million multiply-adds, half a million parameters), trained on a CPU,
has an average certified radius of at least 0.42 at sigma 0.25: that of the ResNet-110 in Cohen et al.'s logs (Gaussian
noise, n = 100,000; the same network trained again by others has 0.487), which takes eight times as many operations for
a sample. And the question of the table: from which training cost on does an ensemble pay?

All rows have the fields of the recipe `cifar10-l2`, whose own row is `single-36`: they train on 49,000 images, cropped
and flipped, with two noisy copies of each and consistency regularisation, by Muon, here in bf16. Rows of one budget
cost as much as so many epochs of one member (the number in their names): the wider network has the inference cost of
two members; a step of the boosted second stage counts 4/3 steps for the pass through the frozen member.

Measured: 500 test images (every 20th), n = 10,000 samples each, alpha 0.001, on the exported ONNX file by the runtime's
own procedure; the noise is the same for all rows, so that differences are paired by image. Hardware: any CPU; the JSON
names it; with AVX-512 bf16 an epoch takes a core 90 to 150 seconds. Repeats: one training for each seed and sigma;
95 % intervals over test images. Rows are kept one by one, certificates as they come.
"""

from robust.train import Recipe

from benchmarks.lib.certified import CertifiedSet
from benchmarks.lib.experiments import Row
from benchmarks.lib.rows.budgets import rows_of_budget

BUDGETS = (4, 12, 36)  # epochs of one member


def _rows(budget: int) -> tuple[Row, ...]:
    first = budget * 2 // 3
    return rows_of_budget(budget, first=first, second=(budget - first) * 3 // 4)


ROWS = tuple(row for budget in BUDGETS for row in _rows(budget))


def recipe_of(row: Row, *, sigma: float, seed: int, quick: bool) -> Recipe:
    """The recipe of a row."""
    fields = {"precision": "bf16", "sigma": sigma, **row.fields, "seed": seed, "name": row.name}
    return Recipe.load("cifar10-l2").replace(**{**fields, "limit": 200, "epochs": 1} if quick else fields)


SET = CertifiedSet("cifar10_fast", ROWS, recipe_of, sigmas="0.25,0.5", n=10_000, every=20, kept=f"single-{BUDGETS[-1]}")
