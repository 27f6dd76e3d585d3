"""Which form of boosting suits smoothed members? All forms at about the same training cost, judged on held-out images.

    python benchmarks/l2_forms.py --data DIR [--sigma 0.5] [--runs DIR] [--quick]

No claim but a choice: the best form becomes the default of the recipe `mnist-l2`, and only the best ones are carried on
to the test images (l2_mnist.py). MNIST, the small CNN at width 0.25, 20,000 training images, Adam. The average
certified radius (ACR) is measured on 200 images held out of the training set with n = 1,000 samples each, so that it
cannot exceed 2.4 sigma; the same noise for every row. Hardware: any CPU; the JSON names it. Repeats: one for each seed.
"""

import sys
from typing import Any

import torch
from experiments import Row, Table, arguments, history, trained
from robust.train import Recipe, Run
from robust.train.certified import certified_accuracy, memory_predictor
from robust.train.data import ImageData, load_data

COMMON: dict[str, Any] = {
    "data": "mnist",
    "norm": "l2",
    "architecture": "cnn",
    "width": 0.25,
    "limit": 20_000,
    "validation": 0.02,
    "validation_images": 200,
    "optimizer": "adam",
    "learning_rate": 0.003,
    "batch": 128,
    "smoothing": "gaussian",
    "noise_samples": 1,
    "steps": 1,
    "step_scale": 1.0,
    "start": "input",
    "growth": 1,
    "previous": "exact",
    "weights": "corrective",
}
BOOSTED: dict[str, Any] = {"stages": 3, "epochs": 3}
COLD: dict[str, Any] = {**BOOSTED, "warm_start": False}
APART: dict[str, Any] = {"stages": 3, "epochs": 4, "booster": "independent"}
ADVERSARIAL: dict[str, Any] = {"smoothing": "softmax", "delta": 1.0}
ROWS = (
    Row("single", "one member, 12 epochs", {"stages": 1, "epochs": 12}),
    Row("independent", "3 independent, 4 epochs each", APART),
    Row("boosted", "boosted 3+3+3, warm start, corrective weights", BOOSTED),
    Row("own-loss", "boosted, warm start, half own loss", {**BOOSTED, "own_loss": 0.5}),
    Row("cold-own-loss", "boosted, cold starts, half own loss", {**COLD, "own_loss": 0.5}),
    Row(
        "adversarial-single",
        "one member, one-step SmoothAdv at radius 1, 7 epochs",
        {**ADVERSARIAL, "epochs": 7, "stages": 1},
    ),
    Row(
        "adversarial-single-half",
        "one member, one-step SmoothAdv at radius 0.5, 7 epochs",
        {**ADVERSARIAL, "delta": 0.5, "epochs": 7, "stages": 1},
    ),
    Row("adversarial-independent", "3 independent, one-step SmoothAdv at radius 1", {**APART, **ADVERSARIAL}),
    Row(
        "adversarial-cold-own-loss",
        "boosted, one-step SmoothAdv at radius 1, cold starts, half own loss",
        {**COLD, **ADVERSARIAL, "own_loss": 0.5},
    ),
    Row("cold-mostly-own-loss", "boosted, cold starts, 0.9 own loss", {**COLD, "own_loss": 0.9}),
    Row("refit", "boosted, cold starts, half own loss, convex refit", {**COLD, "own_loss": 0.5, "refit": True}),
    Row("shrunk", "boosted, trained weights, shrinkage 0.5", {**BOOSTED, "weights": "trained", "shrinkage": 0.5}),
    Row("long-first", "boosted, two stages of 5 epochs", {"stages": 2, "epochs": 5}),
    Row(
        "paper",
        "boosted 1+2+4, `clean` offsets, trained weights",
        {"stages": 3, "epochs": 1, "growth": 2, "previous": "clean", "weights": "trained"},
    ),
)


def average_radius(model: Any, run: Run, data: ImageData, *, n: int) -> float:
    """The ACR of a model in memory on these images."""
    predictor = memory_predictor(
        model, classes=run.classes, input=run.input, sigma=run.recipe.sigma, device=torch.device("cpu")
    )
    found = certified_accuracy(predictor, data, n=n, alpha=0.001, seed=1)
    return float(found["average_radius"])


def main() -> int:
    """Train and measure what is missing."""
    parser = arguments(__doc__, "l2_forms.json")
    parser.add_argument("--sigma", type=float, default=0.5, help="standard deviation of the noise")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images, n = (10, 100) if options.quick else (200, 1000)
    _, held_out = load_data("mnist", root=options.data).split(COMMON["validation"])
    held_out = held_out.subset(torch.arange(0, len(held_out), len(held_out) // images)[:images])
    table = Table(options, held_out_images=images, n=n)
    for row in ROWS:
        for seed in (int(word) for word in options.seeds.split(",")):
            key = f"{options.sigma:g}/{seed}/{row.name}"
            if (options.rows and row.name not in options.rows.split(",")) or key in table.rows:
                continue
            settings = {**COMMON, "delta": options.sigma, "sigma": options.sigma, **row.settings, "seed": seed}
            quick = {"limit": 500, "epochs": 1} if options.quick else {}
            recipe = Recipe.from_json({**settings, **quick})
            run, cost = trained(recipe, options.runs / f"forms-{key.replace('/', '-')}", data=options.data)
            about = {"name": row.name, "label": row.label, "sigma": options.sigma, "seed": seed, **history(run, cost)}
            last = len(run.stages)
            about["acr"] = average_radius(run.ensemble(), run, held_out, n=n)
            if last > 1:
                about["last_member_acr"] = average_radius(run.member(last).eval(), run, held_out, n=n)
            table.put(key, about)
    return 0


if __name__ == "__main__":
    sys.exit(main())
