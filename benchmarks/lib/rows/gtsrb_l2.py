"""Certified l_2 accuracy on traffic signs: one member, a wider one, independent ones, a boosted pair, heads on a trunk.

Claim checked: what the recipe `gtsrb-l2` trains, one member for 20 epochs, certifies as much as whatever else its
training time buys. All rows have its fields (the fast member at half width, Gaussian noise, Muon, shifts of the images)
and cost about 20 epochs of that member: the wider network has the inference cost of two members; a step of the boosted
second stage counts 4/3 steps for the pass through the frozen member; a step of a head counts two thirds. `cat-rs` is
one member by confidence-aware training with four noisy copies, without a teacher; an epoch costs about seven times as
much as one of Gaussian noise.

The frames of a track are held out together; test images are other tracks. Measured on the exported ONNX file by the
runtime's own procedure: 30 noisy copies of each of the 4,210 test images (how many are labelled right, and for how many
images all are); and certificates of every 10th (421), n = 1,000, alpha 0.001, which caps the radius at 2.46 sigma. The
noise is the same for all rows, so that differences are paired by image. The data set is that of
the German traffic sign benchmark at 32x32 pixels (`gtsrb-32.npz`: x_train, y_train, group_train, x_test, y_test).

Hardware: any CPU; the JSON names it. Repeats: one training for each seed and sigma (`--seeds 0,1,2`); 95 % intervals
over test images. Rows are kept one by one, certificates as they come. A row takes about 10 minutes of a core to train,
2 to measure under noise and 6 to certify.
"""

from typing import Any

from robust.train import Recipe

from benchmarks.lib.certified import CertifiedSet
from benchmarks.lib.experiments import Row

APART: dict[str, Any] = {"stages": 2, "epochs": 10, "booster": "independent"}
BOOSTED: dict[str, Any] = {"stages": 2, "epochs": 12, "growth": 0.5, "own_loss": 0.9, "warm_start": False}
HEADS: dict[str, Any] = {**BOOSTED, "stages": 3, "growth": 0.6, "share": "trunk", "split": 2}
AWARE: dict[str, Any] = {
    "smoothing": "cat-rs",
    "noise_samples": 4,
    "delta": 0.5,
    "steps": 1,
    "step_scale": 1.0,
    "guard": 0.0,
    "ramp": 1.0,
    "confidence": 0.5,
    "epochs": 3,
}
STUDENT: dict[str, Any] = {"booster": "independent", "epochs": 10}
ROWS = (
    Row("single", "single", "one member, 20 epochs", {}),
    Row("wider", "wider", "one network of two members' inference cost, 10 epochs", {"epochs": 10, "width": 0.72}),
    Row("independent", "independent", "2 independent, averaged, 10 epochs each", APART),
    Row("boosted", "boosted", "boosted, stages of 12 and 6 epochs from new parameters, nine tenths own loss", BOOSTED),
    Row("heads", "boosted", "boosted, one member of 12 epochs and heads of 7 and 4 on its trunk", HEADS),
    Row("cat-rs", "single", "one member, CAT-RS with one step, 3 epochs of four noisy copies", AWARE),
    Row("student", "student", "one member distilled from the 2 independent members, 10 epochs", STUDENT, "independent"),
)


def recipe_of(row: Row, *, sigma: float, seed: int, quick: bool) -> Recipe:
    """The recipe of a row: the built-in one, with its changes."""
    fields = {"sigma": sigma, **row.fields, "seed": seed, "name": row.name}
    return Recipe.load("gtsrb-l2").replace(**{**fields, "limit": 2000, "epochs": 1} if quick else fields)


SET = CertifiedSet("gtsrb_l2", ROWS, recipe_of, sigmas="0.25,0.12", n=1000, every=10, step=0.125, copies=30)
