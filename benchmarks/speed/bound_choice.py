"""Which bound, and which way to choose the label: what the defaults of `robustinfer.requests` rest on.

    python benchmarks/speed/bound_choice.py [--images 2000] [--seed 0]

Votes are drawn for images whose p_A are spread like the published ones (see published.py). For a budget of T samples in
all, three ways compete for the average certified radius (ACR: the radius where the label is right, else 0):
  split 100    100 samples choose the label, T - 100 bound it: the published way
  split        the default: 1/40 of the samples choose the label, from 10 to 100 of them
  same-sample  all T samples choose and bound, for a smaller share of alpha
each with the top-class and the two-class bound. How much the runner-up holds of what the top class leaves is not
published, so it is varied: 0.6 is near what was measured, 1.0 is the worst case for the two-class bound.
"""

import argparse
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustinfer.requests import SELECTION, selection_of
from robustinfer.smoothing.estimates import Bound, Smoothing, estimate, estimate_same_sample

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.published import PUBLISHED, Population, population
from benchmarks.lib.record import record

ALPHA = 0.001
BUDGETS = (150, 200, 500, 1_000, 2_000, 10_000, 100_000)
RUNNER_UP = (0.4, 0.6, 0.8, 1.0)
Probabilities = npt.NDArray[np.float64]
BOUNDS: tuple[Bound, ...] = ("top-class", "two-class")


def split(smoothing: Smoothing, p: Probabilities, total: int, generator: np.random.Generator, *, of: Any) -> float:
    """The radius if the label is chosen on samples of its own; 0 for a wrong label or none."""
    selection = of(total)
    top = int(generator.multinomial(selection, p).argmax())
    counts = generator.multinomial(total - selection, p)
    return max(0.0, estimate(smoothing, counts, top, ALPHA).radius) if top == 0 else 0.0


def same_sample(smoothing: Smoothing, p: Probabilities, total: int, generator: np.random.Generator) -> float:
    """The radius if the label is chosen on the samples that bound it; 0 for a wrong label or none."""
    counts = generator.multinomial(total, p)
    top = int(counts.argmax())
    return max(0.0, estimate_same_sample(smoothing, counts, top, ALPHA).radius) if top == 0 else 0.0


WAYS: dict[str, Callable[[Smoothing, Probabilities, int, np.random.Generator], float]] = {
    "split 100": functools.partial(split, of=lambda _: SELECTION),
    "split": functools.partial(split, of=selection_of),
    "same-sample": same_sample,
}


def average_radius(images: Population, way: str, bound: Bound, total: int, generator: np.random.Generator) -> float:
    """ACR of one way at one budget."""
    smoothing = Smoothing(images.sigma, bound)
    right = images.probabilities[images.correct]
    return sum(WAYS[way](smoothing, p, total, generator) for p in right) / len(images.correct)


def measure(images: int, seed: int, runner_up: float) -> dict[str, dict[str, float]]:
    """ACR of all ways at all budgets, relative to the published way; the mean over the models."""
    generator = np.random.default_rng(seed)
    populations = [population(model, images, generator, runner_up=runner_up) for model in PUBLISHED]
    table: dict[str, dict[str, float]] = {}
    for total in BUDGETS:
        radii = {
            f"{way}, {bound}": [average_radius(one, way, bound, total, generator) for one in populations]
            for way in WAYS
            for bound in BOUNDS
        }
        base = np.array(radii["split 100, top-class"])
        table[str(total)] = {name: float(np.mean(np.array(found) / base)) for name, found in radii.items()}
    return table


def show(runner_up: float, table: dict[str, dict[str, float]]) -> None:
    names = list(next(iter(table.values())))
    print(f"\nrunner-up holds {runner_up:.0%} of the rest; ACR relative to {names[0]}")
    print("samples  " + "  ".join(f"{name:>22}" for name in names))
    for total, row in table.items():
        best = max(row, key=lambda name: row[name])
        print(f"{total:>7}  " + "  ".join(f"{row[name]:>21.4f}{'*' if name == best else ' '}" for name in names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    for runner_up in RUNNER_UP:
        results[f"runner-up {runner_up}"] = measure(arguments.images, arguments.seed, runner_up)
        show(runner_up, results[f"runner-up {runner_up}"])
    record("bound_choice", arguments=vars(arguments), results=results)


if __name__ == "__main__":
    main()
