"""Certified l_2 accuracy on MNIST after a training as long as the published ones: a boosted ensemble against them.

Claim checked: that of the set `published`, with over five times its epochs. The published LeNet, its 90 epochs and its
figures are described there; the member here is the same `cnn7` at half its width, all training images but 2 %, with
consistency regularisation. Boosting has stages of 70 and 35 epochs; its rival is one member for the same cost, where a
step of the second stage counts 1.4 steps of the first, for the pass through the frozen member.

Up to sigma 0.5 members are trained under a quarter more noise than they are certified with (`noise_scale`), for radii
near the ceiling of 3.8 sigma that n = 100,000 has: there errors count that are too rare at sigma to learn from. With
n = 1,000 l2_forms.py found no gain.

`boosted-muon` has what trains such members faster: batch normalisation (`cnn7-norm`) and the optimiser Muon, both
chosen by trials of 100 processor seconds at sigma 0.5 on held-out images. At sigma 0.5, where the published figure is
farthest, its members are half as wide again.

`boosted-kept` is SmoothAdv with consistency, as the best published LeNet has it, at a price a CPU can pay: each image
keeps its perturbation from epoch to epoch (`attack = "kept"`). Members have full width. Trials at sigma 0.5 on held-out
images: at half width as good as plain consistency after two thirds of its time.

`boosted-equal` has two such members of three quarters of the width, the second from new parameters, most of its loss
its own, both with the same beta: members that err on different noise correct each other. Trials at sigma 0.5 on 300
held-out images (half width, 12 epochs per member, n = 4,000, ACR without a confidence bound): one member 1.666 (mean of
four), two trained apart 1.683, four 1.689; a second member of this kind 1.681, with learned betas 1.675, started from
the first one's parameters 1.673. There the radii 0.5 and 1 of the attack were equally good. At sigma 1 it mattered,
and so did the strength of the regularisation (one member, two-class ACR): none and 10 1.791, 1 and 10 1.783, 1 and 5
1.817, 1 and 2.5 1.828, 1.5 and 5 1.818, 1.5 and 2.5 1.837, which is what the row has, 2 and 2.5 1.830. Its rival is
`single-kept`, one such member for as many epochs: an epoch costs the same in both stages, because the frozen member is
asked once for all (`previous = "clean"`).

`boosted-wide` asks whether width is what is missing: members of full width with four noisy copies of an image instead
of two, for about as many noisy images (stages of 36 and 15 epochs), without the stronger noise. At sigma 1 its
consistency is weaker by what four copies pull harder than two. Its fields were chosen by trials of 150 processor
seconds at sigma 0.5 on held-out images.

Measured: 500 test images (every 20th), n samples each, alpha 0.001, on the exported ONNX file by the runtime's own
procedure. Hardware: any CPU; the JSON names it. Repeats: one training for each seed and sigma; 95 % intervals over test
images. Rows are kept one by one, certificates as they come. A row takes about half an hour of a core to train, and
another to certify with n = 100,000; rows of full width 40 and 55 minutes, `boosted-equal` 55 and 60.
"""

from typing import Any

from robust.train import Recipe

from benchmarks.lib.certified import CertifiedSet
from benchmarks.lib.experiments import Row
from benchmarks.lib.rows import l2_published
from benchmarks.lib.rows.l2_mnist import EQUAL

BOOSTED: dict[str, Any] = {"stages": 2, "epochs": 70, "growth": 0.5, "own_loss": 0.5}
WIDE: dict[str, Any] = {
    "stages": 2,
    "epochs": 36,
    "growth": 0.42,
    "own_loss": 0.5,
    "width": 1.0,
    "noise_samples": 4,
    "batch": 128,
    "noise_scale": 1.0,
}
MUON: dict[str, Any] = {
    "architecture": "cnn7-norm",
    "optimizer": "muon",
    "learning_rate": 0.02,
    "momentum": 0.95,
    "stages": 2,
    "epochs": 75,
    "growth": 0.36,
    "own_loss": 0.5,
}
KEPT: dict[str, Any] = {
    **MUON,
    "width": 1.0,
    "smoothing": "softmax",
    "attack": "kept",
    "steps": 1,
    "step_scale": 0.3,
    "ramp": 3.0,
    "epochs": 64,
    "growth": 0.16,
    "noise_scale": 1.0,
}
EQUAL_STRENGTHS = {0.25: (0.5, 10.0), 0.5: (0.75, 5.0), 1.0: (1.5, 2.5)}
STRENGTHS = {  # by row and sigma: radius of the attack, consistency
    "boosted-kept": {0.25: (0.5, 10.0), 0.5: (0.6, 5.0), 1.0: (1.0, 5.0)},
    "boosted-equal": EQUAL_STRENGTHS,
    "single-kept": EQUAL_STRENGTHS,
}
KEPT_EQUAL: dict[str, Any] = {**KEPT, **EQUAL, "width": 0.75, "epochs": 80, "growth": 0.65}
ROWS = (
    Row("boosted", "boosted", "boosted, stages of 70 and 35 epochs, half own loss", BOOSTED),
    Row("single", "single", "one member, 119 epochs", {"epochs": 119}),
    Row(
        "boosted-wide",
        "boosted",
        "boosted, twice the width, four noisy copies, stages of 36 and 15 epochs (no rival of this size was trained)",
        WIDE,
    ),
    Row(
        "boosted-muon",
        "boosted",
        "boosted, batch normalisation and Muon, stages of 75 and 27 epochs (no rival of this kind was trained)",
        MUON,
    ),
    Row(
        "boosted-kept",
        "boosted",
        "boosted, SmoothAdv with kept perturbations, full width, stages of 64 and 10 epochs (no rival of this kind was "
        "trained)",
        KEPT,
    ),
    Row(
        "boosted-equal",
        "boosted",
        "boosted, SmoothAdv with kept perturbations, width 0.75, stages of 80 and 52 epochs from new parameters, nine "
        "tenths own loss, equal betas (a rival of this kind was trained at sigma 0.5 only)",
        KEPT_EQUAL,
    ),
    Row(
        "single-kept",
        "single",
        "one member, SmoothAdv with kept perturbations, width 0.75, 132 epochs",
        {**KEPT, "width": 0.75, "stages": 1, "epochs": 132},
    ),
)


def recipe_of(row: Row, *, sigma: float, seed: int, quick: bool) -> Recipe:
    """The recipe of a row: that of the set `published`, with stronger noise and the faster memory layout."""
    found = l2_published.recipe_of(row, sigma=sigma, seed=seed, quick=quick)
    scale = row.fields.get("noise_scale", 1.25 if sigma <= 0.5 else 1.0)
    if row.name == "boosted-wide" and sigma >= 1:
        # Four copies lie half as far again from their mean as two do (3/4 against 1/2 of the variance): the published
        # strength, which is for two, would pull as much harder.
        found = found.replace(consistency=found.consistency / 1.5)
    if row.name == "boosted-muon" and sigma == 0.5:
        found = found.replace(width=0.75)
        scale = 1.0  # stronger noise was worse in a trial with this optimiser
    if row.name in STRENGTHS:
        delta, strength = STRENGTHS[row.name][sigma]
        found = found.replace(delta=delta, consistency=strength)
    return found.replace(channels_last=True, noise_scale=scale)


SET = CertifiedSet(
    "l2_long",
    ROWS,
    recipe_of,
    sigmas="0.5,1,0.25",
    n=100_000,
    every=20,
    kept="boosted-equal",
    published=l2_published.PUBLISHED,
)
