"""What a certificate costs as members, classes, pixels and samples grow, one at a time.

    python benchmarks/speed/certify_cost.py [--repeats 5] [--quick]

Random small CNNs in one exported file; `Predictor.certify` of one image. From 3 members, 10 classes, 28x28 pixels and
n = 10,000, one number is changed at a time. Claim: none; the cost grows in proportion to members, pixels and n, and
hardly with classes, as far as the table and the plot say so. All points are timed in turn, repeat by repeat.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from robustinfer import InputSpec, Predictor

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.record import ensemble_file, interleaved, median, record

BASE = {"members": 3, "classes": 10, "side": 28, "n": 10_000}
SWEEPS: dict[str, tuple[int, ...]] = {
    "members": (1, 2, 3, 5, 8),
    "classes": (2, 10, 100, 1000),
    "side": (8, 16, 28, 40, 56),
    "n": (1000, 3000, 10_000, 30_000, 100_000),
}


def certify_once(predictor: Predictor, n: int) -> Any:
    """One certificate of a grey image."""
    return predictor.certify(np.full(predictor.card.input.shape, 128, dtype=np.uint8), n=n, seed=1)


def points(folder: Path, *, quick: bool) -> dict[str, Callable[[], Any]]:
    """One contestant a point of the sweeps; files are shared where only n differs."""
    predictors: dict[tuple[int, int, int], Predictor] = {}
    found: dict[str, Callable[[], Any]] = {}
    for name, values in SWEEPS.items():
        for value in values[:2] if quick else values:
            point = {**BASE, name: value}
            shape = (point["members"], point["classes"], point["side"])
            if shape not in predictors:
                path = folder / f"{'-'.join(map(str, shape))}.onnx"
                spec = InputSpec(1, point["side"], point["side"])
                ensemble_file("cnn", point["members"], spec, path, classes=point["classes"])
                predictors[shape] = Predictor.load(path)
            found[f"{name}={value}"] = partial(certify_once, predictors[shape], point["n"] // (10 if quick else 1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two points per sweep, a tenth of the samples, no record")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        timings = interleaved(
            points(Path(folder), quick=options.quick), repeats=1 if options.quick else options.repeats
        )
    sweeps: dict[str, list[dict[str, float]]] = {}
    for key, timing in timings.items():
        name, _, value = key.partition("=")
        sweeps.setdefault(name, []).append({name: int(value), "seconds": median(timing["wall"])})
        print(f"{key}: {sweeps[name][-1]['seconds']:.3f} s")
    if not options.quick:
        arguments = {**vars(options), "base": BASE, "seeds": {"noise": 1}}
        record("certify_cost", arguments=arguments, results={"sweeps": sweeps, "timings": timings})


if __name__ == "__main__":
    main()
