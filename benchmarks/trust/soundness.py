"""Soundness at scale: millions of certificates on classifiers of known truth, false ones at most alpha in every cell.

    python benchmarks/trust/soundness.py [--certificates 25000] [--seed 0]

A cell is a procedure, a bound, a domain and a classifier. Classifiers are half-spaces at a known distance, chosen so
that errors come as often as they may: a hair below a radius that the procedure can hand out, and a coin. Votes are
drawn from their exact probabilities; the votes of members come from one noise, as in a model file. Under a deadline the
clock is in the hands of an adversary, who stops as soon as the certificate is wrong. Besides, thousands of certificates
per domain come from the real Predictor and its noise, on a half-space whose radius is known exactly. In each cell a
one-sided binomial test asks whether the share of false certificates is above alpha; that is concluded at p < 1e-6, as
there are more than a hundred cells. That the test can tell is shown by a control: procedures that spend one and a half
times their alpha are refuted, at least those that spend it all. (Where a union bound splits it over looks, members or
classes, fewer certificates than alpha are false, and half as many again are still within it.) Then two attacks: on the
low bits of floats, and by the neighbours in a batch.

A record of an interrupted run is continued. After a new edition of the rules only the procedures that depend on it are
drawn again, which takes about ten minutes of a core.
"""

import argparse
import functools
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from robustinfer import Card, InputSpec, Predictor, RobustinferError
from robustinfer.smoothing import member_procedures, procedures, rules
from robustinfer.smoothing.bounds import clopper_pearson_upper, round_radius_down
from robustinfer.smoothing.domains import DOMAINS, GridDomain, noise_name, rounding_cost
from robustinfer.smoothing.estimates import Smoothing, estimate, estimate_same_sample
from robustinfer.smoothing.kinds import Bound
from robustinfer.smoothing.noise import total_variation
from robustinfer.smoothing.procedures import Outcome, Procedure
from robustinfer.smoothing.tally import Tally

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.record import RESULTS, record

ALPHA, SIGMA, N, N0, SIZE = 0.02, 0.5, 200, 20, 784
HAIR = 1e-9
REFUTED = 1e-6
MISTAKE = 1.5  # how many times alpha the procedures of the control spend
CONTROLLED = ("fixed", "same-sample")
ASKED = 0.3  # the radius that is decided
BOUNDS: tuple[Bound, ...] = ("top-class", "two-class")
BETAS = (0.5, 0.3, 0.2)
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Truth:
    """Half-spaces in one direction: each member changes its label from 0 to 1 at its distance."""

    distances: tuple[float, ...]

    @property
    def radius(self) -> float:
        """Where the weighted vote changes: as soon as class 0 has no more than half of the weight."""
        if len(self.distances) == 1:
            return self.distances[0]
        left = 1.0
        for distance, beta in sorted(zip(self.distances, BETAS, strict=True)):
            left -= beta
            if left <= 0.5 + 1e-12:
                return distance
        return max(self.distances)

    def sampler(self, generator: np.random.Generator) -> Callable[[int], Array]:
        """Draws the votes of so many samples: the noise along the direction decides all members together."""
        edges = np.sort(self.distances)
        cdf = np.concatenate([[0.0], special.ndtr(-edges[::-1] / SIGMA), [1.0]])
        regions, tables = np.diff(cdf), []
        for index in range(len(regions)):  # in region i, the i largest distances have not been crossed
            kept = [bool(distance >= edges[len(edges) - index]) if index else False for distance in self.distances]
            rows = [[1, 0, 0] if one else [0, 1, 0] for one in kept]
            whole = sum(beta for beta, one in zip(BETAS, kept, strict=False) if one) if len(kept) > 1 else 0.0
            tables.append(rows[0] if len(kept) == 1 else [*rows, [1, 0, 0] if whole > 0.5 else [0, 1, 0]])
        table = np.array(tables, dtype=np.int64)
        return lambda count: np.tensordot(generator.multinomial(count, regions), table, axes=1)


def smoothing_of(domain: GridDomain, bound: Bound) -> Smoothing:
    return Smoothing(SIGMA, bound, total_variation(noise_name(domain), SIGMA, SIZE), rounding_cost(domain, SIZE))


def start(name: str, smoothing: Smoothing, alpha: float = ALPHA) -> Procedure:
    sizes: dict[str, Any] = {"classes": 2, "n": N, "alpha": alpha}
    voters: dict[str, Any] = {"tally": Tally(2, BETAS, members=True), "n": N, "alpha": alpha}
    makers: dict[str, Callable[[], Procedure]] = {
        "fixed": lambda: procedures.fixed(smoothing, n0=N0, **sizes),
        "same-sample": lambda: procedures.fixed(smoothing, n0=0, **sizes),
        "radius": lambda: procedures.decide(smoothing, n0=N0, radius=ASKED, start=40, **sizes),
        "tolerance": lambda: procedures.planned(smoothing, n0=N0, tolerance=0.05, **sizes),
        "deadline": lambda: procedures.anytime(smoothing, n0=N0, start=40, **sizes),
        "predict": lambda: procedures.vote(slack=smoothing.slack, **sizes),
        "members": lambda: member_procedures.fixed_by_members(smoothing, n0=N0, **voters),
        "members, radius": lambda: member_procedures.decide_by_members(
            smoothing, n0=N0, radius=ASKED, start=40, **voters
        ),
        "members, tolerance": lambda: member_procedures.planned_by_members(smoothing, n0=N0, tolerance=0.05, **voters),
    }
    return makers[name]()


NAMES = ("fixed", "same-sample", "radius", "tolerance", "deadline", "predict", "members", "members, radius")
LATER = ("members, tolerance",)  # behind the others, whose places are their seeds
RULED = ("radius", "tolerance", "deadline", "members, radius", *LATER)  # those that depend on the edition of the rules


def truths(name: str, smoothing: Smoothing) -> dict[str, Truth]:
    """Classifiers that are hard for a procedure."""
    prove = estimate_same_sample if name == "same-sample" else estimate
    share = ALPHA / len(BETAS) if name.startswith("members") else ALPHA
    distances = {"a coin": HAIR, f"a hair below {ASKED}": ASKED + smoothing.rounding - HAIR}
    for votes in (130, 170):
        proven = prove(smoothing, np.array([votes, N - votes, 0]), 0, share).radius
        distances[f"a hair below {votes} of {N}"] = round_radius_down(proven) + smoothing.rounding - HAIR
    if not name.startswith("members"):
        return {label: Truth((distance,)) for label, distance in distances.items()}
    return {label: Truth((distance, distance, 2 * distance + 0.3)) for label, distance in distances.items()}


def certificate(
    name: str, smoothing: Smoothing, truth: Truth, draw: Callable[[int], Array], alpha: float = ALPHA
) -> bool:
    """Make one certificate; whether it is false. On the grid the label holds up to the distance of the half-space."""
    limit = 0.0 if name == "predict" else truth.radius - smoothing.rounding  # a prediction claims no radius
    procedure, counts, first = start(name, smoothing, alpha), np.zeros(3, dtype=np.int64), True
    rule = rules.rule_of(rules.RULES, smoothing, n=N, start=40, alpha=ALPHA)
    wanted = next(procedure)
    while True:
        answer: Any = draw(wanted)
        if name == "deadline":  # the adversary looks at what the certificate says already
            wrong = counts.sum() and round_radius_down(rule.prove(counts, 0).radius) > limit
            counts += 0 if first else answer
            answer, first = "deadline" if wrong else answer, False
        try:
            wanted = procedure.send(answer)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome.label is not None and (outcome.label != 0 or outcome.radius > limit)


def quick() -> None:
    """The bounds are pure functions of few different counts: remembered, a million certificates take minutes."""
    for module in (procedures, member_procedures):
        for name in ("estimate", "estimate_same_sample", "planned_size"):
            setattr(module, name, _remembering(getattr(module, name)))
    for name in ("prove", "hope"):
        setattr(rules._TightLooks, name, _remembering(getattr(rules._TightLooks, name)))


def _remembering(function: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[Any, Any] = {}

    @functools.wraps(function)
    def look_up(smoothing: Smoothing, counts: Array, *rest: Any) -> Any:
        key = (smoothing, counts.tobytes(), *rest)
        if key not in known:
            known[key] = function(smoothing, counts, *rest)
        return known[key]

    return look_up


def judged(false: int, certificates: int) -> dict[str, Any]:
    p_value = float(stats.binomtest(false, certificates, ALPHA, alternative="greater").pvalue)
    upper = float(clopper_pearson_upper(false, certificates, 0.001))
    return {
        "certificates": certificates,
        "false": false,
        "share": round(false / certificates, 5),
        "upper bound on the share": round(upper, 5),
        "p-value": float(f"{p_value:.3g}"),
    }


def control(certificates: int, seed: int) -> dict[str, Any]:
    """The same test of procedures that spend too much, each on the coin."""
    found = {}
    for name in CONTROLLED:
        smoothing = smoothing_of("8-bit", "top-class")
        truth = truths(name, smoothing)["a coin"]
        draw = truth.sampler(np.random.default_rng([seed, *name.encode()]))
        false = sum(certificate(name, smoothing, truth, draw, MISTAKE * ALPHA) for _ in range(certificates))
        found[name] = judged(false, certificates)
    return found


class _HalfSpace:
    """The first pixel is above the middle between two grid points, which both grids have at 127.5/255."""

    name, device, batch = "a half-space", "cpu", 4096

    def scores(self, images: Array) -> Array:
        margin = images.reshape(len(images), -1)[:, 0] - np.float32(127.5 / 255)
        return np.stack([-margin, margin], axis=1).astype(np.float32)


def through_the_predictor(settings: dict[str, Any], domain: GridDomain, certificates: int, seed: int) -> int:
    """False ones among certificates of the real Predictor: 22.5 grey levels from the boundary, at sigma 0.25."""
    card = Card(classes=("dark", "bright"), input=InputSpec(1, 1, 1), sigma=0.25)
    predictor = Predictor(_HalfSpace(), card, digest="sha256:half-space", threads=1)
    image = np.full((1, 1, 1), 150, dtype=np.uint8)
    distance = 22.5 / 255
    found = predictor.certify_many([image] * certificates, seed=seed, alpha=ALPHA, domain=domain, **settings)
    return sum(one.label == 0 or one.radius > distance for one in found)


REAL: dict[str, dict[str, Any]] = {
    "fixed": {"n": 60, "n0": 10},
    "same-sample": {"n": 60, "n0": 0},
    "radius": {"n": 150, "n0": 10, "radius": 0.05},
    "tolerance": {"n": 150, "n0": 30, "tolerance": 0.05},
}


def low_bits() -> list[dict[str, Any]]:
    """The attack on floats: x and x' at distance 0.816, told apart by the low bits of continuous sums."""

    class Engine:
        name, device, batch = "low bits", "cpu", 500

        def scores(self, images: Array) -> Array:
            pixels = images.reshape(len(images), -1).astype(np.float64)
            close = (np.abs(pixels) < 2.0**-6) & (pixels != 0)
            seen = (close & (pixels * 2.0**28 != np.floor(pixels * 2.0**28))).any(axis=1)
            return np.stack([~seen, seen], axis=1).astype(np.float32)

    card = Card(classes=("coarse", "fine"), input=InputSpec(1, 16, 16), sigma=0.5)
    predictor = Predictor(Engine(), card, digest="sha256:low-bits", threads=1)
    rows: list[dict[str, Any]] = []
    ways: tuple[tuple[str, GridDomain | None], ...] = (("uint8", None), ("float32", None), ("uint8", "16-bit"))
    for dtype, domain in ways:
        images = [np.full((1, 16, 16), level, dtype=np.uint8) for level in (0, 13)]
        given = [one if dtype == "uint8" else one.astype(np.float32) / np.float32(255) for one in images]
        near, far = (predictor.certify(one, n=2000, seed=1, domain=domain) for one in given)
        false = near.label != far.label and max(near.radius, far.radius) >= float(np.sqrt(256)) * 13 / 255
        rows.append({"pixels": dtype, "domain": near.domain, "radius": near.radius, "contradiction": false})
    return rows


def neighbours() -> str:
    """The attack by neighbours in a batch: scores that subtract the mean of the batch. What opening the file says."""
    import onnx
    from onnx import TensorProto, helper

    card = Card(classes=("a", "b"), input=InputSpec(1, 2, 2), sigma=0.25)
    nodes = [
        helper.make_node("Flatten", ["image"], ["flat"]),
        helper.make_node("ReduceMean", ["flat"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["flat", "mean"], ["centred"]),
        helper.make_node("MatMul", ["centred", "weight"], ["scores"]),
    ]
    weight = helper.make_tensor("weight", TensorProto.FLOAT, [4, 2], [1.0, -1.0] * 4)
    graph = helper.make_graph(
        nodes,
        "neighbours",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 2, 2])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 2])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "neighbours.onnx"
        onnx.save(model, str(path))
        try:
            Predictor.load(path, card=card, threads=1)
        except RobustinferError as error:
            return str(error).replace(str(path), "neighbours.onnx")
    return ""


def cells() -> Iterator[tuple[str, str, Bound, GridDomain, str]]:
    for names, domain, bound in itertools.product((NAMES, LATER), DOMAINS, BOUNDS):
        for name in names:
            if name == "predict" and bound == "two-class":
                continue  # a prediction has no bound
            for classifier in truths(name, smoothing_of(domain, bound)):
                edition = f"; rules {rules.RULES}" if name in RULED else ""
                key = f"{name}; {'' if name == 'predict' else bound}; {domain}; {classifier}{edition}"
                yield key, name, bound, domain, classifier


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--certificates", type=int, default=25_000, help="per cell")
    parser.add_argument("--real", type=int, default=2_000, help="per domain and procedure, through the Predictor")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    quick()
    path = RESULTS / "soundness.json"
    old = json.loads(path.read_text()) if path.exists() else {}
    same = old.get("arguments") == vars(arguments)
    done: dict[str, Any] = old["results"]["cells"] if same else {}
    wanted, began, worked = list(cells()), time.perf_counter(), 0
    done = {key: done[key] for key, *_ in wanted if key in done}
    for index, (key, name, bound, domain, classifier) in enumerate(wanted):
        if key in done:
            continue
        smoothing = smoothing_of(domain, bound)
        truth = truths(name, smoothing)[classifier]
        draw = truth.sampler(np.random.default_rng([arguments.seed, index]))
        false = sum(certificate(name, smoothing, truth, draw) for _ in range(arguments.certificates))
        done[key] = judged(false, arguments.certificates)
        worked += 1
        left = (time.perf_counter() - began) / worked * (len(wanted) - index - 1)
        print(f"{index + 1:>4}/{len(wanted)} {left:6.0f} s left  {key}: {false} false", file=sys.stderr)
        if worked % 10 == 0:
            record("soundness", arguments=vars(arguments), results={"cells": done})
    real = {
        f"{name}; {domain}": judged(
            through_the_predictor(settings, domain, arguments.real, arguments.seed), arguments.real
        )
        for domain in DOMAINS
        for name, settings in REAL.items()
    }
    everything = [*done.values(), *real.values()]
    total = sum(row["certificates"] for row in everything)
    mistaken = control(arguments.certificates, arguments.seed)
    attacked, refusal = low_bits(), neighbours()
    claims = [
        {"claim": "certificates", "value": total, "at least": 1_000_000, "holds": total >= 1_000_000},
        *_claim("smallest p-value of a cell", min(row["p-value"] for row in everything), REFUTED),
        *_claim("largest share of false ones, against alpha = 0.02", max(r["share"] for r in everything), 0.01),
        *_most(
            f"largest p-value of procedures that spend {MISTAKE} alpha",
            max(row["p-value"] for row in mistaken.values()),
            REFUTED,
        ),
        {
            "claim": "contradictions found by the attack on low bits",
            "value": sum(row["contradiction"] for row in attacked),
            "at most": 0,
            "holds": not any(row["contradiction"] for row in attacked),
        },
        {
            "claim": "files opened whose scores depend on their neighbours",
            "value": int(not refusal),
            "at most": 0,
            "holds": bool(refusal),
        },
    ]
    results = {
        "claims": claims,
        "cells": done,
        "predictor": real,
        "control": mistaken,
        "low bits": attacked,
        "neighbours": refusal,
    }
    record("soundness", arguments=vars(arguments), results=results)
    print(json.dumps(claims, indent=1))


def _most(claim: str, value: float, most: float) -> Iterator[dict[str, Any]]:
    yield {"claim": claim, "value": value, "at most": most, "holds": value <= most}


def _claim(claim: str, value: float, least: float) -> Iterator[dict[str, Any]]:
    yield {"claim": claim, "value": value, "at least": least, "holds": value >= least}


if __name__ == "__main__":
    main()
