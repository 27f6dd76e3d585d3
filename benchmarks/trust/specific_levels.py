"""How many samples a level of its own for each radius would save, where one level serves all probabilities now.

    python benchmarks/trust/specific_levels.py [--images 30000] [--seed 0]

Whoever decides one radius by the top-class bound asks whether p_A exceeds one probability p_0 = Phi(r / sigma). The
level of the looks could then be the largest at which bounds are ever wrong with probability alpha at this p_0; the one
of `robustinfer/smoothing/looks.py` is right for every p, and its bounds are rounded to a grid. Simulated on images like
those of `benchmarks/speed/sample_economy.py`, n = 100,000, alpha = 0.001, all on the same votes:
  now              what the procedure does: looks grow by 1.15, and one level serves every p
  own level        the same looks with the level of p_0, found by bisection on `crossing`; nothing is rounded
  1.05             looks that grow by 1.05, and one level, the least of the own levels of 40 points of the grid
  own level, 1.05  these looks with the level of p_0
Giving up is at level 0.01 over all looks, as now; where looks grow by 1.05, its own level is found in the same way.
Saved is the part of the mean samples over all ten pairs of sigma and radius, those that choose the label included, with
one standard error over images.

Claim: an own level saves less than 5 %, with the looks of now and with finer ones: too little for a table for every
radius, and for a level that is right for one radius alone, where one that is right for every p serves deadlines, both
bounds and every radius.
"""

import argparse
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from robustinfer.requests import SELECTION
from robustinfer.settings import CERTIFY_N
from robustinfer.smoothing.bounds import clopper_pearson_lower, clopper_pearson_upper, round_radius_down
from robustinfer.smoothing.crossing import ARITHMETIC, crossing
from robustinfer.smoothing.estimates import Smoothing
from robustinfer.smoothing.looks import GRID, look_level, look_sizes
from robustinfer.smoothing.procedures import DECIDE_START
from robustinfer.smoothing.rules import FUTILITY, RULES, rule_of

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.drawn import RADII
from benchmarks.lib.published import PUBLISHED, Population, population
from benchmarks.lib.record import record, verdict

ALPHA, FINE = 0.001, 1.05
POINTS = 40  # of the grid, at which the level for every p is sought
Counts = npt.NDArray[np.int64]
Plan = dict[int, tuple[int, int]]


def fine_looks() -> tuple[int, ...]:
    """Looks that grow by 1.05."""
    sizes = [DECIDE_START]
    while sizes[-1] < CERTIFY_N:
        sizes.append(min(CERTIFY_N, math.ceil(FINE * sizes[-1])))
    return tuple(sizes)


def own_level(p: float, sizes: tuple[int, ...], share: float) -> float:
    """The largest level, to a thousandth of it, whose bounds are ever at least p with probability `share` under p."""
    low, high = share / len(sizes), share
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        fits = float(crossing(p, [middle], sizes)[0, -1]) + ARITHMETIC <= share
        low, high = (middle, high) if fits else (low, middle)
    return low


def least(enough: Callable[[int], bool], n: int) -> int:
    """The least count of n that is enough; n + 1 if none is."""
    low, high = 0, n + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def now(sigma: float, radius: float) -> Plan:
    """For each look: from which count on the radius is proven, and below which it is given up."""
    rule = rule_of(RULES, Smoothing(sigma, "top-class"), n=CERTIFY_N, start=DECIDE_START, alpha=ALPHA)
    found = {}
    for size in rule.sizes:

        def proves(count: int, n: int = size) -> bool:
            return round_radius_down(rule.prove(np.array([count, n - count]), 0).radius) >= radius

        def hopes(count: int, n: int = size) -> bool:
            return rule.hope(np.array([count, n - count]), 0) >= radius

        found[size] = (least(proves, size), least(hopes, size))
    return found


def plan(p: float, sizes: tuple[int, ...], level: float, given_up: float) -> Plan:
    """The same for bounds at this level, which are not rounded."""

    def proves(n: int, count: int) -> bool:
        return float(clopper_pearson_lower(count, n, level)) >= p

    whole = least(partial(proves, CERTIFY_N), CERTIFY_N) / CERTIFY_N

    def hopes(n: int, count: int) -> bool:
        return float(clopper_pearson_upper(count, n, given_up)) >= whole

    return {n: (least(partial(proves, n), n), least(partial(hopes, n), n)) for n in sizes}


def for_every(sizes: tuple[int, ...], share: float) -> float:
    """A level for every p, but for the points between those that are tried."""
    return min(own_level(float(p), sizes, share) for p in GRID[:: len(GRID) // POINTS])


def decide(chosen: Plan, votes: dict[int, Counts]) -> tuple[npt.NDArray[np.bool_], Counts]:
    """Which images are certified, and after how many samples each decision ended."""
    images = len(next(iter(votes.values())))
    certified, ended = np.zeros(images, dtype=bool), np.zeros(images, dtype=np.int64)
    for size, (proven, hopeful) in chosen.items():
        going = ended == 0
        certified |= going & (votes[size] >= proven)
        ended[going & ((votes[size] >= proven) | (votes[size] < hopeful) | (size == CERTIFY_N))] = size
    return certified, ended


def draw(images: Population, sizes: list[int], generator: np.random.Generator) -> tuple[dict[int, Counts], Counts]:
    """The votes for each image's label at each of these sizes, and the label, which other samples choose."""
    label = generator.multinomial(SELECTION, images.probabilities).argmax(axis=1)
    p = np.take_along_axis(images.probabilities, label[:, None], axis=1)[:, 0]
    steps = np.diff([0, *sizes])
    counts = np.cumsum(generator.binomial(steps[:, None], p), axis=0)
    return dict(zip(sizes, counts, strict=True)), label


def measure(
    images: Population, radius: float, every: dict[str, float], generator: np.random.Generator
) -> tuple[dict[str, Any], dict[str, Counts]]:
    """One pair of sigma and radius: a row, and the samples of each image."""
    looks, fine = look_sizes(CERTIFY_N, DECIDE_START), fine_looks()
    votes, label = draw(images, sorted({*looks, *fine}), generator)
    p = float(ndtr(radius / images.sigma))
    own = {"own level": own_level(p, looks, ALPHA), "own level, 1.05": own_level(p, fine, ALPHA)}
    plans = {
        "now": now(images.sigma, radius),
        "own level": plan(p, looks, own["own level"], look_level(FUTILITY, CERTIFY_N, DECIDE_START)),
        "1.05": plan(p, fine, every["alpha"], every["futility"]),
        "own level, 1.05": plan(p, fine, own["own level, 1.05"], every["futility"]),
    }
    row: dict[str, Any] = {"sigma": images.sigma, "radius": radius, **{f"{name}: level": own[name] for name in own}}
    used = {}
    for name, chosen in plans.items():
        certified, ended = decide(chosen, votes)
        used[name] = SELECTION + ended
        row[f"{name}: samples"] = float(used[name].mean())
        row[f"{name}: certified, %"] = 100 * float((certified & images.correct & (label == 0)).mean())
    print(", ".join(f"{key} {value:.4g}" for key, value in row.items()), flush=True)
    return row, used


def saved(used: list[dict[str, Counts]], name: str, other: str) -> tuple[float, float]:
    """The part of the samples, in %, that one way saves of those of another, and its standard error."""
    ours, theirs = (np.concatenate([one[key] for one in used]) for key in (name, other))
    share = 1 - ours.mean() / theirs.mean()
    error = float(np.std(ours - (1 - share) * theirs)) / math.sqrt(len(ours)) / float(theirs.mean())
    return 100 * float(share), 100 * error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=30_000, help="of each published model")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator = np.random.default_rng(options.seed)
    fine = fine_looks()
    every = {"alpha": for_every(fine, ALPHA), "futility": for_every(fine, FUTILITY)}
    populations = [population(model, options.images, generator) for model in PUBLISHED]
    measured = [measure(one, radius, every, generator) for one in populations for radius in RADII[one.sigma]]
    rows, used = [row for row, _ in measured], [own for _, own in measured]
    pairs = (("own level", "now"), ("own level, 1.05", "1.05"), ("1.05", "now"), ("own level, 1.05", "now"))
    table: list[dict[str, Any]] = []
    for name, other in pairs:
        share, error = saved(used, name, other)
        lost = [row[f"{other}: certified, %"] - row[f"{name}: certified, %"] for row in rows]
        found = {"way": name, "beside": other, "samples saved, %": share, "standard error": error}
        table.append(found | {"points of certified accuracy lost": float(np.mean(lost))})
        print(table[-1])
    claims = [
        verdict(f"{row['way']} beside {row['beside']}: samples saved, %", row["samples saved, %"], 5.0, at_least=False)
        for row in table[:2]
    ]
    levels = {
        "now": look_level(ALPHA, CERTIFY_N, DECIDE_START),
        "1.05": every["alpha"],
        "giving up, 1.05": every["futility"],
    }
    results = {"claims": claims, "saved": table, "pairs": rows, "levels for every p": levels}
    record("specific_levels", arguments=vars(options), results=results)


if __name__ == "__main__":
    main()
