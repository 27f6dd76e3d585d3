"""How many samples a decision needs, against the usual n = 100,000.

    python benchmarks/speed/sample_economy.py [--images 3000] [--seed 0]

Votes are drawn for images whose p_A are spread like the published ones (see published.py), and fed to the procedures
the Predictor uses, with its defaults. Claims:
  deciding a radius (`radius=r`) takes at least 44 times fewer samples than n = 100,000 on average, at no more than 0.1
  points of certified accuracy lost, and `tolerance=0.05` at least 14 times fewer, at a mean loss of at most 0.045.
The first two are means over ten pairs of sigma and radius. Four of them have r = 0.001 (is there a certificate at all),
which is cheap and loses little: over the six with radii of 0.25 to 1 the figures are worse; docs/guarantee.md
has both. The last two are means over the four sigmas: the mean loss of one sigma, and of one image
above all, can be larger.
Beside the samples, Wald's yardstick is shown (`robustinfer/smoothing/yardstick.py`): an estimate, not a bound, of what
the best test would take on average, if it knew the probabilities.

The fixed-n certificate of an image continues from the votes of its decision, so the two are compared on the same luck.
Samples that choose the label are counted, in both.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustinfer.requests import PILOT, SELECTION
from robustinfer.settings import CERTIFY_N
from robustinfer.smoothing.estimates import Bound, Smoothing, estimate
from robustinfer.smoothing.procedures import Outcome, Procedure, decide, planned
from robustinfer.smoothing.rules import FUTILITY
from robustinfer.smoothing.yardstick import least_samples

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.drawn import RADII
from benchmarks.lib.published import CLASSES, PUBLISHED, Population, population
from benchmarks.lib.record import record, verdict

ALPHA = 0.001
TOLERANCE = 0.05


def feed(procedure: Procedure, p: npt.NDArray[np.float64], generator: np.random.Generator) -> Outcome:
    """Run a procedure on votes drawn with the probabilities p."""
    wanted = next(procedure)
    while True:
        try:
            wanted = procedure.send(generator.multinomial(wanted, p))
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome


def full_radius(smoothing: Smoothing, outcome: Outcome, p: Any, generator: np.random.Generator) -> float:
    """What all n samples prove about class 0, going on from the votes an outcome rests on."""
    counts = outcome.counts + generator.multinomial(CERTIFY_N - int(outcome.counts.sum()), p)
    return estimate(smoothing, counts, 0, ALPHA).radius


def decide_radius(images: Population, bound: Bound, radius: float, generator: np.random.Generator) -> dict[str, float]:
    """Decide one radius for all images."""
    smoothing = Smoothing(images.sigma, bound)
    used, ours, full = [], 0, 0
    for p, correct in zip(images.probabilities, images.correct, strict=True):
        procedure = decide(smoothing, classes=CLASSES, n0=SELECTION, n=CERTIFY_N, alpha=ALPHA, radius=radius)
        outcome = feed(procedure, p, generator)
        used.append(outcome.selection + int(outcome.counts.sum()))
        ours += bool(correct) and outcome.label == 0 and outcome.radius >= radius
        full += bool(correct) and full_radius(smoothing, outcome, p, generator) >= radius
    p_b = images.probabilities[:, 1] if bound == "two-class" else None
    asked: dict[str, Any] = {"sigma": images.sigma, "radius": radius, "n": CERTIFY_N, "alpha": ALPHA}
    wald = SELECTION + float(least_samples(images.probabilities[:, 0], p_b, futility=FUTILITY, **asked).mean())
    return {
        "sigma": images.sigma,
        "radius": radius,
        "mean_samples": float(np.mean(used)),
        "median_samples": float(np.median(used)),
        "times_fewer": (CERTIFY_N + SELECTION) / float(np.mean(used)),
        "wald_samples": wald,
        "wald_over_mean": wald / float(np.mean(used)),
        "certified_accuracy": 100 * ours / len(used),
        "certified_accuracy_of_all_samples": 100 * full / len(used),
        "points_lost": 100 * (full - ours) / len(used),
    }


def come_close(images: Population, bound: Bound, generator: np.random.Generator) -> dict[str, float]:
    """A radius within the tolerance for all images."""
    smoothing = Smoothing(images.sigma, bound)
    used, lost = [], []
    for p in images.probabilities:
        procedure = planned(smoothing, classes=CLASSES, n0=PILOT, n=CERTIFY_N, alpha=ALPHA, tolerance=TOLERANCE)
        outcome = feed(procedure, p, generator)
        used.append(outcome.selection + int(outcome.counts.sum()))
        lost.append(max(full_radius(smoothing, outcome, p, generator), 0.0) - outcome.radius)
    return {
        "sigma": images.sigma,
        "mean_samples": float(np.mean(used)),
        "times_fewer": (CERTIFY_N + SELECTION) / float(np.mean(used)),
        "mean_radius_lost": float(np.mean(lost)),
        "share_beyond_tolerance": float(np.mean(np.array(lost) > TOLERANCE)),
    }


def measure(bound: Bound, images: int, seed: int) -> dict[str, Any]:
    """Both modes over all models, for one bound."""
    generator = np.random.default_rng(seed)
    populations = [population(model, images, generator) for model in PUBLISHED]
    decisions = [decide_radius(one, bound, radius, generator) for one in populations for radius in RADII[one.sigma]]
    close = [come_close(one, bound, generator) for one in populations]
    print(f"\n{bound}: sigma, radius, mean samples, times fewer, Wald's estimate over mean, points lost")
    for row in decisions:
        print(
            f"{row['sigma']:5} {row['radius']:6} {row['mean_samples']:8.0f} {row['times_fewer']:6.1f} "
            f"{row['wald_over_mean']:6.2f} {row['points_lost']:6.2f}"
        )
    print("sigma, mean samples, times fewer, mean radius lost, share beyond the tolerance")
    for row in close:
        print(
            f"{row['sigma']:5} {row['mean_samples']:8.0f} {row['times_fewer']:6.1f} {row['mean_radius_lost']:7.4f} "
            f"{row['share_beyond_tolerance']:7.4f}"
        )

    def mean(rows: list[dict[str, float]], key: str) -> float:
        return float(np.mean([row[key] for row in rows]))

    full = CERTIFY_N + SELECTION
    claims = [
        verdict("radius: times fewer samples, on average", full / mean(decisions, "mean_samples"), 44),
        verdict("radius: points lost, on average", mean(decisions, "points_lost"), 0.1, at_least=False),
        verdict("radius: times fewer by Wald's yardstick", full / mean(decisions, "wald_samples"), 44),
        verdict("tolerance 0.05: times fewer samples", full / mean(close, "mean_samples"), 14),
        verdict("tolerance 0.05: mean radius lost", mean(close, "mean_radius_lost"), 0.045, at_least=False),
    ]
    return {"decisions": decisions, "tolerance": close, "claims": claims}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    bounds: tuple[Bound, ...] = ("two-class", "top-class")
    results: dict[str, Any] = {bound: measure(bound, arguments.images, arguments.seed) for bound in bounds}
    record("sample_economy", arguments=vars(arguments), results=results)


if __name__ == "__main__":
    main()
