"""Error rates of the procedures that look, stop or plan: 10^5 certificates at a time, at the hardest classifiers.

    python benchmarks/trust/decisions.py [--certificates 100000] [--seed 0]

Classifiers of known truth: slabs across one direction, the top class on one side, the runner-up on the other, and the
other classes between them. With two classes that is a half-space; with 3 and 10 the bound on the runner-up decides the
two-class radius, and sigma/2 (Phi^-1(p_A) - Phi^-1(p_B)) is the exact distance at which the label changes (Cohen et al.
2019, Theorem 2). A certificate depends on two counts per look: those of its label, and the largest other one. All
certificates of a cell are drawn together, and what the rules say about counts (`robustinfer.smoothing`: `rules`,
`planning`, `estimates`) is asked once per pair of them that occurs. The distances are those where errors come most
often: a hair below the radius that is asked for, below what some counts prove, and the coin. Under a deadline an
adversary stops the clock as soon as the certificate is wrong. With more than two classes radii are conservative,
because a false one takes an error on either side.

`bounds` is the sharper test, of what is proven before any radius: a certificate is false as soon as one look has a
lower bound above p_A or an upper bound below p_B. `members` are three half-spaces that vote, of which the first decides
alone: its share of alpha is a third. Their decisions are drawn one by one.

A one-sided binomial test asks whether more than alpha of a cell's certificates are false; the controls, of radii and of
bounds, take every look at full alpha and have to be refuted by the same test.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from robustinfer.smoothing.bounds import round_radius_down
from robustinfer.smoothing.combination import Ballot, combine
from robustinfer.smoothing.estimates import Estimate, Smoothing, estimate
from robustinfer.smoothing.kinds import Bound
from robustinfer.smoothing.member_procedures import decide_by_members, planned_by_members
from robustinfer.smoothing.planning import planned_size
from robustinfer.smoothing.procedures import Procedure
from robustinfer.smoothing.rules import RULES, LookRule, rule_of
from robustinfer.smoothing.tally import Tally

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.record import record

ALPHA, SIGMA, N0, ASKED, TOLERANCE, HAIR = 0.01, 0.5, 20, 0.3, 0.05, 1e-9
REFUTED = 1e-6
BOUNDS: tuple[Bound, ...] = ("top-class", "two-class")
SIZES = ((200, 40), (5_000, 100))  # n, and the first look
RUNNERS_UP = {3: (0.22, 0.26), 10: (0.1, 0.2)}  # p_B, by the number of classes
BETAS = (3.0, 1.0, 1.0)
NAMES = ("radius", "deadline", "tolerance", "bounds", "control", "control of bounds")
Array = npt.NDArray[Any]
Ask = Callable[[Array], float]


@dataclass(frozen=True)
class World:
    """A classifier whose label changes at a known distance: p_A first, then p_B, then what lies between."""

    name: str
    shares: tuple[float, ...]
    distance: float


def slab(name: str, distance: float, p_b: float | None = None, classes: int = 2) -> World:
    """The world of this distance, with p_B as given, or a half-space."""
    if p_b is None:
        p_a = float(special.ndtr(distance / SIGMA))
        return World(name, (p_a, 1 - p_a), distance)
    p_a = float(special.ndtr(2 * distance / SIGMA + special.ndtri(p_b)))
    rest = (1 - p_a - p_b) / (classes - 2)
    assert 0 <= rest <= p_b, (name, p_a, p_b)
    return World(f"{name}, {classes} classes, p_B = {p_b}", (p_a, p_b, *[rest] * (classes - 2)), distance)


def votes(first: int, second: int, size: int, entries: int) -> Array:
    """Votes of a look, with the label's count first, in which the largest other count is this one; the last entry is
    that of samples without a class, as `Tally` has it."""
    found, left = np.zeros(entries, dtype=np.int64), size - first - second
    found[:2] = first, second
    for index in range(2, entries):
        found[index] = min(left, second)
        left -= int(found[index])
    assert left == 0
    return found


def by_counts(counts: Array, tops: Array, function: Ask) -> Array:
    """A function of each row of votes, asked once per label's count and largest other count that occur."""
    rows, size = np.arange(len(counts)), int(counts[0].sum())
    others = counts.copy()
    others[rows, tops] = -1
    pairs, places = np.unique(np.stack([counts[rows, tops], others.max(axis=1)], axis=1), axis=0, return_inverse=True)
    entries = counts.shape[1] + 1
    values = np.array([function(votes(int(first), int(second), size, entries)) for first, second in pairs])
    return values[places.reshape(-1)]


def looked(
    rule: Any, world: World, certificates: int, rng: np.random.Generator, *, radius: float
) -> tuple[Array, Array]:
    """The labels, and the largest radius that any look before the end of each decision has proven."""
    tops = rng.multinomial(N0, world.shares, certificates).argmax(axis=1)
    counts, best = np.zeros((certificates, len(world.shares)), dtype=np.int64), np.zeros(certificates)
    alive, before = np.arange(certificates), 0
    for size in rule.sizes:
        counts[alive] += rng.multinomial(size - before, world.shares, len(alive))
        before = size
        proven = by_counts(counts[alive], tops[alive], lambda row: round_radius_down(rule.prove(row, 0).radius))
        best[alive] = np.maximum(best[alive], proven)
        if np.isfinite(radius):
            hopes = by_counts(counts[alive], tops[alive], lambda row: rule.hope(row, 0))
            alive = alive[(best[alive] < radius) & (hopes >= radius)]
        if not len(alive):
            break
    return tops, best


def misled(rule: Any, world: World, certificates: int, rng: np.random.Generator) -> Array:
    """Whether any look has a bound on the wrong side of its probability; the label is the true one."""
    p_a, p_b = world.shares[0], max(world.shares[1:])
    counts, before = np.zeros((certificates, len(world.shares)), dtype=np.int64), 0
    tops, wrong = np.zeros(certificates, dtype=np.int64), np.zeros(certificates, dtype=bool)

    def crossed(row: Array) -> float:
        found = rule.prove(row, 0)
        assert found.p_upper is not None
        return float(found.p_lower > p_a or found.p_upper < p_b)

    for size in rule.sizes:
        counts += rng.multinomial(size - before, world.shares, certificates)
        before = size
        wrong |= by_counts(counts, tops, crossed) > 0
    return wrong


def planned(
    smoothing: Smoothing, n: int, world: World, certificates: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """The labels, and the radii of plans for a tolerance."""
    pilots, best = rng.multinomial(N0, world.shares, certificates), np.zeros(certificates)
    tops = pilots.argmax(axis=1)
    plan: Ask = lambda row: planned_size(smoothing, row, 0, n, ALPHA, TOLERANCE)  # noqa: E731
    sizes = by_counts(pilots, tops, plan).astype(np.int64)
    for size in np.unique(sizes[sizes > 0]):
        mine = np.flatnonzero(sizes == size)
        counts = rng.multinomial(size, world.shares, len(mine))
        prove: Ask = lambda row: round_radius_down(estimate(smoothing, row, 0, ALPHA).radius)  # noqa: E731
        best[mine] = by_counts(counts, tops[mine], prove)
    return tops, best


def by_members(name: str, smoothing: Smoothing, n: int, start: int, certificates: int, rng: Any) -> int:
    """How many certificates of three members that vote are false: each of them is a hair nearer than what is asked."""
    distance = ASKED - HAIR
    p, tally = float(special.ndtr(distance / SIGMA)), Tally(2, BETAS, members=True)
    assert combine([Ballot(beta, 0, distance) for beta in BETAS]).radius == distance
    make: dict[str, Callable[[], Procedure]] = {
        "radius": lambda: decide_by_members(smoothing, tally, n0=N0, n=n, alpha=ALPHA, radius=ASKED, start=start),
        "tolerance": lambda: planned_by_members(smoothing, tally, n0=N0, n=n, alpha=ALPHA, tolerance=TOLERANCE),
    }
    false = 0
    for _ in range(certificates):
        procedure = make[name]()
        size = next(procedure)
        while True:
            drawn = rng.binomial(size, p, len(BETAS))
            counts = np.array([*([one, size - one, 0] for one in drawn), [size, 0, 0]])
            try:
                size = procedure.send(counts)
            except StopIteration as stop:
                outcome = stop.value
                break
        false += outcome.label is not None and (outcome.label != 0 or outcome.radius > distance)
    return false


class _FullAlpha:
    """The control: every look at full alpha."""

    def __init__(self, rule: LookRule, smoothing: Smoothing) -> None:
        self.sizes, self.hope, self._smoothing = rule.sizes, rule.hope, smoothing

    def prove(self, counts: Array, top: int) -> Estimate:
        return estimate(self._smoothing, counts, top, ALPHA)


def worlds(smoothing: Smoothing, n: int, start: int) -> list[World]:
    """The hardest classifiers for these sizes; with more than two classes where the bound looks at the runner-up."""
    rule = rule_of(RULES, smoothing, n=n, start=start, alpha=ALPHA)
    found = [slab("a coin", HAIR), slab(f"a hair below {ASKED}", ASKED - HAIR)]
    for share in (0.65, 0.85):
        proven = rule.prove(votes(round(share * n), n - round(share * n), n, 3), 0).radius
        found.append(slab(f"a hair below {share:.0%} of {n:,}", round_radius_down(proven) - HAIR))
    if smoothing.bound == "two-class":
        for classes, runners_up in RUNNERS_UP.items():
            found += [slab(f"a hair below {ASKED}", ASKED - HAIR, p_b, classes) for p_b in runners_up]
    return found


def cell(name: str, smoothing: Smoothing, n: int, start: int, world: World, count: int, rng: Any) -> dict[str, Any]:
    """The false certificates of a cell, and whether they are more than alpha allows."""
    rule: Any = rule_of(RULES, smoothing, n=n, start=start, alpha=ALPHA)
    if name.startswith("control"):
        rule = _FullAlpha(rule, smoothing)
    if name.endswith("bounds"):
        false = int(misled(rule, world, count, rng).sum())
    else:
        if name == "tolerance":
            tops, best = planned(smoothing, n, world, count, rng)
        else:
            tops, best = looked(rule, world, count, rng, radius=np.inf if name == "deadline" else ASKED)
        false = int(((best > 0) & ((tops != 0) | (best > world.distance))).sum())
    return judged(false, count)


def judged(false: int, count: int) -> dict[str, Any]:
    """So many false ones, and the test of whether they are more than alpha of all."""
    test = stats.binomtest(false, count, ALPHA, alternative="greater")
    return {"certificates": count, "false": false, "share": false / count, "p-value": float(test.pvalue)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--certificates", type=int, default=100_000, help="per cell")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    cells: dict[str, Any] = {}

    def put(key: str, row: dict[str, Any]) -> None:
        cells[key] = row
        print(key, row, file=sys.stderr, flush=True)

    count = arguments.certificates
    for (index, name), (which, bound) in itertools.product(enumerate(NAMES), enumerate(BOUNDS)):
        smoothing = Smoothing(SIGMA, bound)
        if name.endswith("bounds") and bound == "top-class":
            continue  # its errors are those of radii
        for n, start in SIZES:
            for place, world in enumerate(worlds(smoothing, n, start)):
                rng = np.random.default_rng([arguments.seed, index, which, n, place])
                put(f"{name}; {bound}; n = {n:,}; {world.name}", cell(name, smoothing, n, start, world, count, rng))
    n, start = SIZES[0]
    for index, name in enumerate(("radius", "tolerance")):
        rng = np.random.default_rng([arguments.seed, len(NAMES) + index])
        false = by_members(name, Smoothing(SIGMA), n, start, count, rng)
        put(f"members, {name}; two-class; n = {n:,}; a hair below {ASKED}", judged(false, count))
    real = [row for key, row in cells.items() if not key.startswith("control")]
    control = [row["p-value"] for key, row in cells.items() if key.startswith("control; top-class")]
    other = [row["p-value"] for key, row in cells.items() if key.startswith("control of bounds")]
    smallest, largest = min(row["p-value"] for row in real), max(row["share"] for row in real)
    claims = [
        {"claim": "smallest p-value of a cell", "value": smallest, "at least": REFUTED, "holds": smallest >= REFUTED},
        {"claim": f"largest share of false ones (alpha is {ALPHA})", "value": largest, "at most": ALPHA,
         "holds": largest <= ALPHA},
        {"claim": "smallest p-value of the control", "value": min(control), "at most": REFUTED,
         "holds": min(control) <= REFUTED},
        {"claim": "largest p-value of the control of bounds", "value": max(other),
         "at most": REFUTED, "holds": max(other) <= REFUTED},
    ]  # fmt: skip
    record("decisions", arguments=vars(arguments), results={"claims": claims, "cells": cells})
    print(json.dumps(claims, indent=1))


if __name__ == "__main__":
    main()
