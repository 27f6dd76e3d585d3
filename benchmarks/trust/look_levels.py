"""The table behind `robustinfer.smoothing.looks`: how often bounds at level a are ever wrong, over all looks and all p.

    python benchmarks/trust/look_levels.py [--write] [--simulate 100000]

For every point of the grid of probabilities, and for 44 levels from 1e-9 to 0.03, `crossing` gives the probability that
a Clopper-Pearson bound at that level is wrong at some look; the largest over the grid is tabulated. With --write (about
half an hour) the table is computed and takes the place of `robustinfer/smoothing/look_table.py`; without, the one there
is checked by simulation: at the p where errors come most often, for levels of all sizes, and at others, draw
`--simulate` sequences of counts, and ask by a binomial test whether more than the promised share is ever wrong.

The level is one for all p. A decision of one radius by the top-class bound could have a level of its own, because it
asks about one p alone: it would save 1.1 % of the samples on images like the published ones (standard error 0.1), and
0.4 % if looks grew by 1.05 instead of 1.15, which alone saves 3.4 % (`specific_levels.py`). So there is none. Looks
grow by 1.15 all the same: by 1.05 there are three times as many, and below 5,000 samples, where most decisions end,
they lie closer than the 256 samples of one engine run.
"""

import argparse
import json
import math
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from robustinfer.files import replacing
from robustinfer.smoothing import look_table
from robustinfer.smoothing.bounds import clopper_pearson_lower
from robustinfer.smoothing.crossing import ARITHMETIC, crossing
from robustinfer.smoothing.looks import GRID, look_level, look_sizes, tight_looks

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.record import record

LEVELS = tuple(
    float(f"{level:.3g}")
    for level in np.concatenate(
        [np.geomspace(1e-9, 5e-6, 13)[:-1], np.geomspace(5e-6, 2e-4, 21)[:-1], np.geomspace(2e-4, 3e-2, 12)]
    )
)
COLUMNS = (200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
REFUTED = 1e-6
Array = npt.NDArray[np.float64]


def multiples(workers: int) -> Array:
    """For each level and column the largest crossing probability over the grid, divided by the level."""
    largest, began = np.zeros((len(LEVELS), len(COLUMNS))), time.perf_counter()
    with ProcessPoolExecutor(workers) as pool:
        for done, found in enumerate(pool.map(probabilities, GRID, chunksize=8), start=1):
            largest = np.maximum(largest, found)
            if done % 50 == 0:
                left = (time.perf_counter() - began) / done * (len(GRID) - done)
                print(f"{done}/{len(GRID)} points, {left:.0f} s left", file=sys.stderr, flush=True)
    return np.asarray(largest / np.array(LEVELS)[:, None])


def probabilities(p: float) -> Array:
    """The crossing probabilities of each level, up to the last look below each column."""
    sizes = tight_looks()
    ends = [sum(size < column for size in sizes) - 1 for column in COLUMNS]
    return np.asarray(crossing(float(p), LEVELS, sizes)[:, ends] + ARITHMETIC)


HEADER = '''\
"""How many times its level a bound at many looks is ever wrong; written by benchmarks/trust/look_levels.py.

A row is a level a of the bounds; under a size stands the most that P(some bound at a look below this size is wrong) / a
can be, for any p, rounded up. `looks.py` has the statement and its proof.
"""

__all__ = ["COLUMNS", "MULTIPLES"]

COLUMNS = (200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)

_ROWS = """
'''
FOOTER = '''"""

MULTIPLES: dict[float, tuple[float, ...]] = {
    float(level): tuple(map(float, multiples))
    for level, *multiples in (row.split() for row in _ROWS.strip().splitlines())
}
'''


def write(found: Array) -> None:
    """The table as a module."""
    rows = [
        f"{level:g} " + " ".join(f"{math.ceil(100 * value) / 100:.2f}" for value in row) + "\n"
        for level, row in zip(LEVELS, found, strict=True)
    ]
    with replacing(Path(look_table.__file__)) as path:
        path.write_text(HEADER + "".join(rows) + FOOTER)


def ever_wrong(p: float, level: float, sizes: tuple[int, ...], sequences: int, generator: np.random.Generator) -> int:
    """In how many sequences the bound reaches the grid point p at some look, for samples of probability p."""
    counts, wrong = np.zeros(sequences, dtype=np.int64), np.zeros(sequences, dtype=bool)
    for before, size in zip((0, *sizes), sizes, strict=False):
        counts += generator.binomial(size - before, p, sequences)
        possible = np.arange(counts.min(), counts.max() + 1)
        wrong |= (clopper_pearson_lower(possible, size, level) >= p)[counts - possible[0]]
    return int(wrong.sum())


def simulate(sequences: int, seed: int) -> list[dict[str, Any]]:
    """Promised and simulated shares of wrong bounds at points all over the grid, for the looks of the procedures."""
    rows = []
    points = [float(GRID[np.searchsorted(GRID, p)]) for p in (0.06, 0.2, 0.35, 0.45, 0.5, 0.6, 0.75, 0.9, 0.98, 0.999)]
    for share in (0.05, 0.01, 0.001):
        for n, start in ((200, 40), (1_000, 100), (10_000, 32), (100_000, 100)):
            level, sizes = look_level(share, n, start), look_sizes(n, start)
            for index, p in enumerate(points):
                generator = np.random.default_rng([seed, n, start, index, int(1 / share)])
                wrong = ever_wrong(p, level, sizes, sequences, generator)
                p_value = float(stats.binomtest(wrong, sequences, share, alternative="greater").pvalue)
                rows.append(
                    {"share": share, "n": n, "start": start, "p": p, "level": level, "sequences": sequences,
                     "wrong": wrong, "wrong / promised": wrong / sequences / share, "p-value": p_value}
                )  # fmt: skip
            print(json.dumps(max(rows[-len(points) :], key=lambda row: row["wrong"])), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="compute the table again, and replace it")
    parser.add_argument("--workers", type=int, default=1, help="processes that compute the table")
    parser.add_argument("--simulate", type=int, default=100_000, help="sequences per cell")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.write:
        write(multiples(arguments.workers))
        return
    rows = simulate(arguments.simulate, arguments.seed)
    smallest = min(row["p-value"] for row in rows)
    largest = max(row["wrong / promised"] for row in rows)
    claims = [
        {"claim": "smallest p-value of a cell", "value": smallest, "at least": REFUTED, "holds": smallest >= REFUTED},
        {
            "claim": "largest share of the promise that was used",
            "value": largest,
            "at least": 0.5,
            "holds": largest >= 0.5,
        },
    ]
    record("look_levels", arguments=vars(arguments), results={"claims": claims, "cells": rows})
    print(json.dumps(claims, indent=1))


if __name__ == "__main__":
    main()
