"""Which fields do the digits recipes have, and why? All candidates, judged on held-out images with three seeds.

    python benchmarks/accuracy/digits_forms.py [--rows linf-doubling,...] [--seeds 1,2,3] [--runs DIR] [--quick]

No claim but a choice: the default of `digits-linf` and `digits-l2` is, of the boosted rows with the paper's doubling
stages whose later members are all weak learners (a positive edge, which the theory needs), the one with the highest
accuracy under attack. Rows that a member fails keep a warning in their training; they may be more accurate. A quarter
of the training images is held out and measured under PGD-20 with two restarts; the test images are not read. The rows
of a threat have about as many epochs in all, so that every one takes about a minute; one member of all these epochs,
and the first stage alone, are shown beside them. Hardware: any CPU; the JSON names it. Rows are kept one by one.
"""

import itertools
import sys
from pathlib import Path
from typing import Any

import torch
from robust.train import Ensemble, Recipe
from robust.train.attacks.accuracy import PgdAttack, measure
from robust.train.attacks.proportions import Proportion
from robust.train.data.datasets import ImageData, load_data
from robust.train.machine.processes import Processes

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.experiments import Row, Table, arguments, chosen_rows, history, trained

HELD_OUT = 0.25
COMMON: dict[str, Any] = {
    "data": "digits",
    "architecture": "cnn",
    "width": 0.5,
    "optimizer": "adam",
    "learning_rate": 0.005,
    "batch": 64,
    "previous": "exact",
    "betas": "corrective",
    "validation": HELD_OUT,
}
LINF: dict[str, Any] = {"norm": "linf", "delta": 0.15, "ramp": 1.0, "stages": 4, "epochs": 2}
L2: dict[str, Any] = {
    "norm": "l2",
    "delta": 0.5,
    "smoothing": "scores",
    "sigma": 0.25,
    "noise_samples": 2,
    "steps": 4,
    "step_scale": 0.5,
    "start": "input",
    "stages": 3,
    "epochs": 2,
}
EQUAL: dict[str, Any] = {"growth": 1.0}
ROWS = (
    Row("linf-first", "single", "l_inf: the first stage alone, 2 epochs", {**LINF, "stages": 1}),
    Row("linf-single", "single", "l_inf: one member, 30 epochs", {**LINF, "stages": 1, "epochs": 30}),
    Row("linf-doubling", "boosted", "l_inf: boosted 2+4+8+16", LINF),
    Row("linf-doubling-3", "boosted", "l_inf: boosted 4+8+16", {**LINF, "stages": 3, "epochs": 4}),
    Row("linf-equal", "boosted", "l_inf: boosted 10+10+10", {**LINF, **EQUAL, "stages": 3, "epochs": 10}),
    Row("linf-own-loss", "boosted", "l_inf: boosted 2+4+8+16, own loss 0.3", {**LINF, "own_loss": 0.3}),
    Row("linf-trained", "boosted", "l_inf: boosted 2+4+8+16, trained betas", {**LINF, "betas": "trained"}),
    Row("linf-adversarial", "boosted", "l_inf: boosted 2+4+8+16, `adversarial`", {**LINF, "previous": "adversarial"}),
    Row("l2-first", "single", "l_2: the first stage alone, 2 epochs", {**L2, "stages": 1}),
    Row("l2-single", "single", "l_2: one member, 14 epochs", {**L2, "stages": 1, "epochs": 14}),
    Row("l2-doubling", "boosted", "l_2: boosted 2+4+8", L2),
    Row("l2-own-loss", "boosted", "l_2: boosted 2+4+8, own loss 0.3", {**L2, "own_loss": 0.3}),
    Row("l2-equal", "boosted", "l_2: boosted 5+5+5", {**L2, **EQUAL, "epochs": 5}),
    Row("l2-softmax", "boosted", "l_2: boosted 2+4+8, SmoothAdv members", {**L2, "smoothing": "softmax"}),
    Row(
        "l2-cold",
        "boosted",
        "l_2: boosted 2+4+8, cold starts, own loss 0.3",
        {**L2, "own_loss": 0.3, "warm_start": False},
    ),
)


def robust_rate(model: Ensemble, data: ImageData, recipe: Recipe) -> dict[str, Any]:
    """Accuracy under attack on these images, with its interval."""
    attack = PgdAttack.of(recipe, steps=20, restarts=2)
    processes, classes = Processes(torch.device("cpu")), len(data.classes)
    found = measure(model, data, attack, classes=classes, processes=processes, seed=(recipe.seed, 7))
    return Proportion(found.robust, len(data)).to_json()


def main() -> int:
    """Train and measure what is missing."""
    parser = arguments(__doc__, "digits_forms.json", data=False)
    parser.set_defaults(seeds="1,2,3")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    _, held_out = load_data("digits").split(HELD_OUT)
    table = Table(options, "digits_forms.py", held_out_images=len(held_out))
    chosen = chosen_rows(ROWS, options.rows)
    for seed, row in itertools.product((int(word) for word in options.seeds.split(",")), chosen):
        key = f"{row.name}/{seed}"
        if key in table.rows:
            continue
        quick = {"limit": 200, "epochs": 1} if options.quick else {}
        recipe = Recipe.from_json({**COMMON, **row.fields, **quick, "seed": seed, "name": row.name})
        run, cost = trained(recipe, options.runs / f"digits-{key.replace('/', '-')}", data=Path())
        about = {**row.about, "norm": recipe.norm, "seed": seed, **history(run, cost)}
        about["robust"] = robust_rate(run.ensemble(), held_out, recipe)
        if len(run.stages) > 1:
            last = Ensemble([run.member(len(run.stages))], [1.0]).freeze()
            about["last_member"] = robust_rate(last, held_out, recipe)
        table.put(key, about)
    return 0


if __name__ == "__main__":
    sys.exit(main())
