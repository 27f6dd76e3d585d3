"""Error rates of the procedures that look, stop or plan: 10^5 certificates at a time, at the hardest classifiers.

    python benchmarks/trust/decisions.py [--certificates 100000] [--seed 0]

Half-spaces at a known distance have two classes, so a certificate depends on one count per look. All certificates of a
cell are drawn together, and what the rules say about a count (`robustinfer.smoothing`: `rules`, `planning`,
`estimates`) is asked once per count that occurs. The distances are those where errors come most often: a hair below the
radius that is asked for, below what some counts prove, and the coin. Under a deadline an adversary stops the clock as
soon as the certificate is wrong. A one-sided binomial test asks whether more than alpha of a cell's certificates are
false; the control, which takes every look at full alpha, has to be refuted by the same test.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from robustinfer.smoothing.bounds import round_radius_down
from robustinfer.smoothing.estimates import Estimate, Smoothing, estimate
from robustinfer.smoothing.kinds import Bound
from robustinfer.smoothing.planning import planned_size
from robustinfer.smoothing.rules import RULES, rule_of

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.record import record

ALPHA, SIGMA, N0, ASKED, TOLERANCE, HAIR = 0.01, 0.5, 20, 0.3, 0.05, 1e-9
REFUTED = 1e-6
BOUNDS: tuple[Bound, ...] = ("top-class", "two-class")
SIZES = ((200, 40), (5_000, 100))  # n, and the first look
Array = npt.NDArray[Any]


def votes(count: int, size: int, top: int) -> Array:
    """The votes of a look, in which class 0 has `count`; the label that was chosen comes first."""
    found = np.array([count, size - count, 0])
    return found if top == 0 else found[[1, 0, 2]]


def by_count(counts: Array, function: Callable[[int], float]) -> Array:
    """A function of each count, asked once per count that occurs."""
    values, places = np.unique(counts, return_inverse=True)
    return np.array([function(int(value)) for value in values])[places]


def looked(
    smoothing: Smoothing, n: int, start: int, p: float, certificates: int, rng: np.random.Generator,
    *, radius: float, alpha: float = ALPHA, rule: Any = None,
) -> tuple[Array, Array]:  # fmt: skip
    """The labels, and the largest radius that any look before the end of each decision has proven."""
    rule = rule or rule_of(RULES, smoothing, n=n, start=start, alpha=alpha)
    tops = np.where(2 * rng.binomial(N0, p, certificates) >= N0, 0, 1)
    counts, best = np.zeros(certificates, dtype=np.int64), np.zeros(certificates)
    alive, before = np.ones(certificates, dtype=bool), 0
    for size in rule.sizes:
        counts[alive] += rng.binomial(size - before, p, int(alive.sum()))
        before = size
        for top in (0, 1):
            mine = np.flatnonzero(alive & (tops == top))
            if not len(mine):
                continue
            prove = lambda k, t=top, s=size: round_radius_down(rule.prove(votes(k, s, t), 0).radius)  # noqa: E731
            best[mine] = np.maximum(best[mine], by_count(counts[mine], prove))
            if np.isfinite(radius):
                hope = lambda k, t=top, s=size: rule.hope(votes(k, s, t), 0)  # noqa: E731
                alive[mine] = (best[mine] < radius) & (by_count(counts[mine], hope) >= radius)
        if not alive.any():
            break
    return tops, best


def planned(smoothing: Smoothing, n: int, p: float, certificates: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """The labels, and the radii of plans for a tolerance."""
    pilots, best = rng.binomial(N0, p, certificates), np.zeros(certificates)
    tops = np.where(2 * pilots >= N0, 0, 1)
    for pilot in np.unique(pilots):
        mine = np.flatnonzero(pilots == pilot)
        top = int(tops[mine[0]])
        size = planned_size(smoothing, votes(int(pilot), N0, top), 0, n, ALPHA, TOLERANCE)
        if size:
            counts = rng.binomial(size, p, len(mine))
            prove = lambda k, t=top, s=size: round_radius_down(estimate(smoothing, votes(k, s, t), 0, ALPHA).radius)  # noqa: E731
            best[mine] = by_count(counts, prove)
    return tops, best


class _FullAlpha:
    """The control: every look at full alpha."""

    def __init__(self, smoothing: Smoothing, n: int, start: int) -> None:
        self._rule = rule_of(RULES, smoothing, n=n, start=start, alpha=ALPHA)
        self.sizes, self.hope, self._smoothing = self._rule.sizes, self._rule.hope, smoothing

    def prove(self, counts: Array, top: int) -> Estimate:
        return estimate(self._smoothing, counts, top, ALPHA)


def distances(smoothing: Smoothing, n: int, start: int) -> dict[str, float]:
    rule = rule_of(RULES, smoothing, n=n, start=start, alpha=ALPHA)
    found = {"a coin": HAIR, f"a hair below {ASKED}": ASKED - HAIR}
    for share in (0.65, 0.85):
        proven = rule.prove(votes(round(share * n), n, 0), 0).radius
        found[f"a hair below {share:.0%} of {n:,}"] = round_radius_down(proven) - HAIR
    return found


def cell(name: str, smoothing: Smoothing, n: int, start: int, distance: float, count: int, rng: Any) -> dict[str, Any]:
    p = float(special.ndtr(distance / SIGMA))
    if name == "tolerance":
        tops, best = planned(smoothing, n, p, count, rng)
    else:
        radius = np.inf if name == "deadline" else ASKED
        rule = _FullAlpha(smoothing, n, start) if name == "control" else None
        tops, best = looked(smoothing, n, start, p, count, rng, radius=radius, rule=rule)
    false = int(((best > 0) & ((tops == 1) | (best > distance))).sum())
    test = stats.binomtest(false, count, ALPHA, alternative="greater")
    return {"certificates": count, "false": false, "share": false / count, "p-value": float(test.pvalue)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--certificates", type=int, default=100_000, help="per cell")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    cells: dict[str, Any] = {}
    for index, name in enumerate(("radius", "deadline", "tolerance", "control")):
        for bound in BOUNDS:
            smoothing = Smoothing(SIGMA, bound)
            for n, start in SIZES:
                for place, (classifier, distance) in enumerate(distances(smoothing, n, start).items()):
                    rng = np.random.default_rng([arguments.seed, index, len(bound), n, place])
                    key = f"{name}; {bound}; n = {n:,}; {classifier}"
                    cells[key] = cell(name, smoothing, n, start, distance, arguments.certificates, rng)
                    print(key, cells[key], file=sys.stderr, flush=True)
    real = [row for key, row in cells.items() if not key.startswith("control")]
    control = [row["p-value"] for key, row in cells.items() if key.startswith("control; top-class")]
    smallest, largest = min(row["p-value"] for row in real), max(row["share"] for row in real)
    claims = [
        {"claim": "smallest p-value of a cell", "value": smallest, "at least": REFUTED, "holds": smallest >= REFUTED},
        {"claim": f"largest share of false ones (alpha is {ALPHA})", "value": largest, "at most": ALPHA,
         "holds": largest <= ALPHA},
        {"claim": "smallest p-value of the control", "value": min(control), "at most": REFUTED,
         "holds": min(control) <= REFUTED},
    ]  # fmt: skip
    record("decisions", arguments=vars(arguments), results={"claims": claims, "cells": cells})
    print(json.dumps(claims, indent=1))


if __name__ == "__main__":
    main()
