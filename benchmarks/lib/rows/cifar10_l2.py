"""Certified l_2 accuracy on CIFAR-10 with one-step training: a boosted ensemble of narrow ResNet-20s.

Claim checked: the paper's "certified accuracy at or above one network, at a lower training cost", as far as a CPU
reaches: ResNet-20 at half its width, one-step SmoothAdv, 25,000 training images, few epochs; against one member, one
wider network of two members' inference cost, and one member with plain Gaussian noise, all for about the same training
time (the table has the processor seconds). Measured: 200 test images (every 50th), n samples each, alpha 0.001, on the
exported file. The figures are those of a short training and say nothing about the data set's state of the art.

The experiment at full size, for a GPU: `robust train paper-cifar10-l2 --data DIR --device cuda`, then
`robust export RUN --out cifar.onnx` and
`robust certify cifar.onnx --data cifar10:DIR --every 20 --n 100000 --device cuda --out cifar.jsonl`.

Hardware: any CPU; the JSON names it. Repeats: one for each seed. Rows are kept one by one.
"""

from typing import Any

from robust.train import Recipe

from benchmarks.lib.certified import CertifiedSet
from benchmarks.lib.experiments import Row

COMMON: dict[str, Any] = {
    "data": "cifar10",
    "norm": "l2",
    "architecture": "resnet20",
    "width": 0.5,
    "channels_last": True,
    "limit": 25_000,
    "validation": 0.02,
    "validation_images": 100,
    "augment": "crop-flip",
    "smoothing": "softmax",
    "noise_samples": 1,
    "steps": 1,
    "step_scale": 1.0,
    "start": "input",
    "guard": 0.0,
    "optimizer": "adam",
    "learning_rate": 0.005,
    "batch": 64,
    "previous": "exact",
    "betas": "corrective",
}
ROWS = (
    Row("boosted", "boosted", "boosted, stages of 5 and 2 epochs", {"stages": 2, "epochs": 5, "growth": 0.4}),
    Row("single", "single", "one member, 8 epochs", {"stages": 1, "epochs": 8}),
    Row(
        "gaussian",
        "single",
        "one member, Gaussian noise, 13 epochs",
        {"stages": 1, "epochs": 13, "smoothing": "gaussian"},
    ),
    Row(
        "wider",
        "wider",
        "one network of two members' inference cost, 4 epochs",
        {"stages": 1, "epochs": 4, "width": 0.7},
    ),
)


def recipe_of(row: Row, *, sigma: float, seed: int, quick: bool) -> Recipe:
    """The recipe of a row; SmoothAdv attacks within sigma."""
    fields = {**COMMON, "delta": sigma, "sigma": sigma, **row.fields, "seed": seed, "name": row.name}
    return Recipe.from_json({**fields, "limit": 200, "epochs": 1} if quick else fields)


SET = CertifiedSet("cifar10_l2", ROWS, recipe_of, sigmas="0.25", n=2000, every=50)
