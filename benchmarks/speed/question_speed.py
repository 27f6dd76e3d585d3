"""How long an answer takes, against the published loop that is asked the same: full n, a radius within a tolerance, yes
or no at a radius.

    python benchmarks/speed/question_speed.py [--images 20] [--repeats 3] [--quick]

The model is the ensemble of the recipe `digits-l2`, trained by the script (a minute), on test images of digits. The
published loop draws n = 100,000 samples per image whatever the question: eager torch, noise from torch, one image at a
time, batches of 1,000 samples, votes counted in Python. Then one thing after the other is put in its place:
  engine         the same loop on the exported file in ONNX Runtime
  batching       `Predictor.certify_many`, n = 100,000: batches of many images, noise that can be replayed
  tolerance 0.05 the same, asked for a radius that is on average at most 0.05 below what all samples would give
  radius 0.25    the same, asked whether the radius is at least 0.25
Claim: wall-clock ratios to the published loop, repeat by repeat in one run; the median counts. No target but the
engine's own: see certify_speed.py and sample_economy.py.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from robust.export import export_run
from robust.train import Recipe, train

from robustinfer import Predictor
from robustinfer.data import digits

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.record import Timing, interleaved, median, record
from benchmarks.speed.certify_speed import LOOP_BATCH, published_loop

SIGMA = 0.25
STEPS = ("published loop", "engine", "batching", "tolerance 0.05", "radius 0.25")


def engine_loop(predictor: Predictor, image: Any, *, n: int, generator: np.random.Generator) -> list[int]:
    """The published loop with the exported file in place of eager torch."""
    counts = [0] * 10
    for start in range(0, n, LOOP_BATCH):
        noise = generator.standard_normal((min(LOOP_BATCH, n - start), *image.shape), dtype=np.float32)
        for vote in predictor.engine.scores(image + np.float32(SIGMA) * noise).argmax(axis=1):
            counts[vote] += 1
    return counts


def contestants(predictor: Predictor, ensemble: Any, images: Any, n: int) -> dict[str, Callable[[], Any]]:
    """Each answers for all images; the loops for the first image only, because their time does not depend on it."""
    unit = images[0] / np.float32(255)
    tensor, generator = torch.from_numpy(unit), np.random.default_rng(0)

    def many(**question: Any) -> Callable[[], Any]:
        return lambda: list(predictor.certify_many(images, n=n, seed=1, **question))

    return {
        "published loop": lambda: published_loop(ensemble, tensor, n=n, batch=LOOP_BATCH, classes=10),
        "engine": lambda: engine_loop(predictor, unit, n=n, generator=generator),
        "batching": many(),
        "tolerance 0.05": many(tolerance=0.05),
        "radius 0.25": many(radius=0.25),
    }


def table(timings: dict[str, Timing], images: int) -> list[dict[str, Any]]:
    """Seconds per image, how many times faster than the published loop, and than the step before."""
    share = {name: 1 if name in STEPS[:2] else images for name in STEPS}
    lines: list[dict[str, Any]] = []
    for number, name in enumerate(STEPS):
        before = STEPS[max(0, number - 1)] if name != "radius 0.25" else "batching"

        def times_faster(than: str, name: str = name) -> float:
            pairs = zip(timings[than]["wall"], timings[name]["wall"], strict=True)
            return median([(theirs / share[than]) / (ours / share[name]) for theirs, ours in pairs])

        seconds = median(timings[name]["wall"]) / share[name]
        lines.append({"step": name, "seconds per image": seconds, "times the published loop": times_faster(STEPS[0])})
        lines[-1] |= {"gained by this step": times_faster(before), "over": before}
        print(lines[-1])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a short training, n = 2,000, no record")
    options = parser.parse_args()
    n, changes = (2000, {"stages": 1, "epochs": 1}) if options.quick else (100_000, {})
    with tempfile.TemporaryDirectory() as folder:
        run = train(Recipe.load("digits-l2").replace(**changes), Path(folder) / "run", device="cpu")
        export_run(run, Path(folder) / "digits.onnx")
        predictor = Predictor.load(Path(folder) / "digits.onnx")
        images = digits("test")[0][: options.images]
        runs = contestants(predictor, run.ensemble(), images, n)
        used = {name: [answer.samples_used for answer in runs[name]()] for name in STEPS[2:]}
        timings = interleaved(runs, repeats=options.repeats)
    results = {"steps": table(timings, options.images), "timings": timings}
    results["mean_samples"] = {name: float(np.mean(counts)) for name, counts in used.items()}
    if not options.quick:
        record("question_speed", arguments={**vars(options), "n": n, "sigma": SIGMA}, results=results)


if __name__ == "__main__":
    main()
