"""Which form of boosting suits smoothed members? Forms of about the same training cost, judged on held-out images.

    python benchmarks/accuracy/l2_forms.py --data DIR [--sigma 0.5] [--runs DIR] [--quick]

No claim but a choice: the best form becomes the default of the recipe `mnist-l2`, and only the best ones are carried on
to the test images (`certified.py --set mnist`). The average certified radius (ACR) is measured on 200 images held out
of the training set with n = 1,000 samples each, so it cannot exceed 2.5 sigma; the same noise for every row. Beside
it, for later rows, the ACR on 200 of the training images: while both rise together as a training gets longer or a
member wider, the model is too small or trained too briefly, and neither more images nor augmentation would help.
Hardware: any CPU; the JSON names it. Repeats: one for each seed. Rows are kept one by one.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from robust.train import Run
from robust.train.data.datasets import ImageData, load_data
from robust.train.evaluation.certified import certified_accuracy, memory_predictor

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.experiments import Table, arguments, chosen_rows, history, trained
from benchmarks.lib.rows.l2_mnist import ROWS, VALIDATION, recipe_of


def average_radius(model: Any, run: Run, data: ImageData, *, n: int) -> float:
    """The ACR of a model in memory on these images."""
    predictor = memory_predictor(
        model, classes=run.classes, input=run.input, sigma=run.recipe.sigma, device=torch.device("cpu")
    )
    found = certified_accuracy(predictor, data, n=n, alpha=0.001, seed=1)
    return float(found["average_radius"])


def _spread(data: ImageData, images: int) -> ImageData:
    """So many images, evenly spread over the first of the data: over the 20,000 that every row was trained on."""
    among = min(len(data), 100 * images)
    return data.subset(torch.arange(0, among, among // images)[:images])


def main() -> int:
    """Train and measure what is missing."""
    parser = arguments(__doc__, "l2_forms.json")
    parser.add_argument("--sigma", type=float, default=0.5, help="standard deviation of the noise")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images, n = (10, 100) if options.quick else (200, 1000)
    training, held_out = (_spread(part, images) for part in load_data("mnist", root=options.data).split(VALIDATION))
    table = Table(options, "l2_forms.py", held_out_images=images, n=n)
    for row in chosen_rows(ROWS, options.rows):
        for seed in (int(word) for word in options.seeds.split(",")):
            key = f"{options.sigma:g}/{seed}/{row.name}"
            if key in table.rows:
                continue
            recipe = recipe_of(row, sigma=options.sigma, seed=seed, quick=options.quick)
            run, cost = trained(recipe, options.runs / f"l2-{key.replace('/', '-')}", data=options.data)
            about = {**row.about, "sigma": options.sigma, "seed": seed, **history(run, cost)}
            last = len(run.stages)
            about["acr"] = average_radius(run.ensemble(), run, held_out, n=n)
            about["training_acr"] = average_radius(run.ensemble(), run, training, n=n)
            if last > 1:
                about["last_member_acr"] = average_radius(run.member(last).eval(), run, held_out, n=n)
            table.put(key, about)
    return 0


if __name__ == "__main__":
    sys.exit(main())
