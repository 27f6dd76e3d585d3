"""How many samples and certificates a second cheaper files give, and what a decided radius then costs, against the
published loop.

    python benchmarks/speed/cheap_samples.py [--runs RUNS] [--repeats 7] [--decided 3] [--certified] [--quick]

5 x ResNet-20 with random parameters on 32x32 colour images. In one run, in turn:
  published loop       eager torch, noise from torch, votes counted in Python, batches of 1,000 samples (its default)
  plain, int8          `Predictor.certify` with the exported file, in float32 and in 8-bit integers
  heads, heads int8    the same with five heads on one trunk (stem and two of three groups), which is passed once
  cascade, ...         each of these four as a cascade
Random members agree on nothing, so the thresholds of the cascades are set such that each member in turn is asked of the
share of noisy samples that it is asked of in a cascade of trained members. Those are five ResNet-20 trained here with
Gaussian noise on digits (seven minutes of a core, kept in RUNS), by the default rule, on held-out images that took no
part in its fit; `--reached` sets other shares. Digits are easy: where members agree less, more of them are asked, as
on traffic signs (`operations.py`). So the results say up to how many members asked the claims hold, on a line between
the cascade in 8-bit integers and the plain file in them, which asks all five. `cascade_rules.py` has other rules.

What those five trained members lose as a cascade is measured last: all test images of digits, certified with n = 1,000
by the plain file and by cascades that keep this share of its labels, on the same noise, with the standard error of the
paired difference. `--certified` measures that alone, and puts it into the record of the rest.

Then radii are decided (`radius=r`) for images whose p_A are spread like the published ones, with the cascade in 8-bit
integers; benchmarks/lib/drawn.py says how. The published loop draws n = 100,000 samples whatever the question.
Operations are multiply-adds, those of 8-bit integers counted like others.

Claims: cascade and int8 together draw at least 12 times the samples per second of the published loop at equal n. A
decided radius takes at least 100 times fewer operations than n = 100,000 on the plain ensemble, and at most 1/600 of
the time of the published loop. The cascade of the trained members, by the default rule, loses 1 % of ACR at most. Every
timing is in the record, as wall and as processor seconds; rates are compared repeat by repeat, and the median of the
ratios counts.
"""

import argparse
import copy
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from robust.export import CascadeOptions, export_run
from robust.export.acceptance import Images
from robust.export.cards import held_out_images
from robust.export.cascade import Rule, margins, walk
from robust.export.cascade_file import costs
from robust.export.cascade_graph import Parts, PartsRunner, cascade_graph, parts_of
from robust.export.fusion import fuse
from robust.export.onnx_file import finished, onnx_file
from robust.export.precision import calibration_copies, lower
from robust.train import Recipe
from robust.train.members import Member, build_member
from robust.train.members.ensemble import Ensemble
from robust.train.members.trunk import share_trunk
from robust.train.runs.run import Run

from robustinfer import Card, InputSpec, Predictor
from robustinfer.smoothing.domains import noise_name
from robustinfer.smoothing.noise import add_noise

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.accuracy.cascade_rules import DEFAULT, measure, table
from benchmarks.lib.drawn import decisions, run_decisions, typical
from benchmarks.lib.experiments import trained
from benchmarks.lib.record import (
    RESULTS,
    Timing,
    environment,
    interleaved,
    median,
    record,
    verdict,
    write_record,
)
from benchmarks.speed.certify_speed import LOOP_BATCH, SIGMA, published_loop

MEMBERS, SPLIT, CLASSES = 5, 2, 10
SPEC = InputSpec(3, 32, 32)
CARD = Card(classes=tuple("0123456789"), input=SPEC, name="5 x resnet20", sigma=SIGMA)
CERTIFICATE, SELECTION = 100_000, 100
LOOP, PLAIN, TARGET, DECIDED = "published loop", "plain", "cascade int8", "decided"
IMAGES = 2000  # of each published model, for which radii are decided
TYPICAL = 32  # decisions that stand for all of these
AGREEMENTS = (0.99, 0.995, 0.998, 0.999, 0.9995)
CERTIFIED_N, ALL = 1000, 10_000  # samples of a test image, and more images than there are
FIVE: dict[str, Any] = {
    "name": "five ResNet-20",
    "architecture": "resnet20",
    "width": 1.0,
    "booster": "independent",
    "stages": MEMBERS,
    "epochs": 12,
    "smoothing": "gaussian",
    "noise_samples": 1,
}

Batch = npt.NDArray[np.float32]


def noisy(image: npt.NDArray[np.uint8], count: int, seed: int) -> Batch:
    """Noisy copies of an image, as `Predictor` draws them."""
    out = np.empty((count, *SPEC.shape), dtype=np.float32)
    add_noise(image, noise=noise_name("8-bit"), sigma=SIGMA, seed=seed, first=0, out=out)
    return out


def members(image: npt.NDArray[np.uint8], *, heads: bool) -> Ensemble:
    """Fresh members whose scores vary under noise: with mean 0 and deviation 1 for each class."""
    mean, std = torch.full((3,), 0.5), torch.full((3,), 0.25)
    batch = torch.from_numpy(noisy(image, 256, seed=0))
    found: list[Member] = []
    for seed in range(MEMBERS):
        member = build_member("resnet20", input=SPEC, classes=CLASSES, mean=mean, std=std, seed=seed).eval()
        if heads:
            member = share_trunk(member, SPLIT)
            assert member.trunk is not None
            trunk = member.trunk.names()
            first = found[0] if found else member
            member.load_state_dict({k: v for k, v in first.state_dict().items() if k in trunk}, strict=False)
        head = member.head
        assert head is not None
        with torch.no_grad():
            scores = member(batch)
            head.weight.div_(scores.std(dim=0)[:, None])
            head.bias.copy_((head.bias - scores.mean(dim=0)) / scores.std(dim=0))
        found.append(member)
    return Ensemble(found, [1.0] * MEMBERS).freeze()


def rule_of(terms: Batch, reached: Sequence[float]) -> Rule:
    """Thresholds at which these shares of the samples go to each member in turn."""
    totals = np.cumsum(terms, axis=0, dtype=np.float32)
    alive = np.arange(terms.shape[1])
    limits = []
    for step, share in enumerate(reached[1:]):
        margin = margins(totals[step][alive])
        stay = max(1, round(share * terms.shape[1]))  # somebody always does: no step is left out
        ordered = np.sort(margin)
        limits.append(float(np.float32((ordered[stay - 1] + ordered[min(stay, len(ordered) - 1)]) / 2)))
        alive = alive[margin <= limits[-1]]
    return Rule(tuple(range(len(terms))), tuple(limits))


@dataclass(frozen=True)
class File:
    """One file of the comparison: the shares of noisy samples that each member is asked of, and what a sample costs."""

    path: Path
    reached: list[float]
    flops: dict[str, Any]

    @property
    def macs(self) -> float:
        """Multiply-adds per sample, on average."""
        own = sum(cost * share for cost, share in zip(self.flops["members"], self.reached, strict=True))
        return float(self.flops["shared"] + own) / 2


def trained_members(runs: Path) -> tuple[Run, dict[str, Any]]:
    """Five members that agree as trained ones do, and what their training cost."""
    torch.set_num_threads(2)
    return trained(Recipe.load("digits-l2").replace(**FIVE), runs / "cheap_samples", data=Path("data"))


def trained_shares(runs: Path) -> tuple[list[float], dict[str, Any]]:
    """What share of noisy samples each of five trained members is asked of, and what is known about them."""
    run, cost = trained_members(runs)
    path = runs / "cheap_samples.onnx"
    card = export_run(run, path, cascade=CascadeOptions()).card
    assert card.cascade is not None
    facts = {"recipe": run.recipe.to_json(), "training": cost, "cascade": card.cascade, "parity": dict(card.parity)}
    return list(card.cascade["reached"]), facts


def certified(runs: Path, *, quick: bool) -> dict[str, Any]:
    """What the trained members certify as cascades that keep more or fewer of the plain file's labels."""
    run, _ = trained_members(runs)
    held_out = held_out_images(run, "data", 20 if quick else ALL)
    assert held_out is not None  # digits come with scikit-learn
    kept = {f"margin, {share:g}": CascadeOptions(agreement=share) for share in AGREEMENTS}
    wanted: dict[str, dict[str, Any]] = {PLAIN: {}}
    wanted |= {name: {"cascade": options} for name, options in kept.items()}
    wanted |= {f"{DEFAULT}, int8": {"cascade": kept[DEFAULT], "precision": "int8"}}
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, options) in enumerate(wanted.items()):
            path = Path(folder) / f"{number}.onnx"
            export_run(run, path, held_out=None, samples=200, **options)
            measured[name] = measure(path, held_out, CERTIFIED_N)
    rows = table(measured, MEMBERS)
    plain = rows[0]["ACR"]
    lost = {row["rule"]: 100 * (1 - row["ACR"] / plain) for row in rows}
    claims = [verdict(f"trained cascade, {DEFAULT}: ACR lost, %", lost[DEFAULT], 1.0, at_least=False)]
    facts = {"images": len(held_out.labels), "source": held_out.source, "n": CERTIFIED_N}
    rows = [row | {"ACR lost, %": lost[row["rule"]]} for row in rows]
    found = {"claims": claims, "rules": rows, "facts": facts, "environment": environment()}
    return found | {"raw": {name: one["radii"] for name, one in measured.items()}}


def write_files(
    folder: Path, image: npt.NDArray[np.uint8], reached: Sequence[float]
) -> tuple[dict[str, File], Ensemble]:
    """The files by name, and the plain ensemble."""
    files: dict[str, File] = {}
    calibration = Images("copies of one image", np.repeat(image[None], 16, axis=0))
    copies, _ = calibration_copies(calibration, CARD)
    plain: Ensemble | None = None
    for name, heads in (("plain", False), ("heads", True)):
        ensemble = members(image, heads=heads)
        plain = plain or copy.deepcopy(ensemble)
        fused = fuse(ensemble, SPEC)
        build = onnx_file(fused, CARD, sampler=False, opset=None)
        lowered, _ = lower("int8", build, CARD, calibration=calibration, held_out=None)
        parts = parts_of(fused, CARD, opset=None)
        everyone = [1.0] * MEMBERS
        contents = {name: (build(CARD), everyone), _joined(name, "int8"): (lowered(CARD), everyone)}
        for kind, own in ((_joined(name, "cascade"), parts), (_joined(name, "cascade int8"), parts.lowered(copies))):
            contents[kind] = _cascade(own, image, reached)
        flops = costs(fused, range(MEMBERS), CARD)
        for kind, (content, shares) in contents.items():
            path = folder / f"{kind.replace(' ', '-')}.onnx"
            path.write_bytes(content)
            files[kind] = File(path, shares, flops)
    assert plain is not None
    return files, plain


def _joined(name: str, kind: str) -> str:
    return kind if name == PLAIN else f"{name} {kind}"


def _cascade(parts: Parts, image: npt.NDArray[np.uint8], reached: Sequence[float]) -> tuple[bytes, list[float]]:
    """The file of a cascade with these leaving rates, and the rates on other noise."""
    runner = PartsRunner(parts)
    rule = rule_of(runner.terms(noisy(image, 512, seed=0)), reached)
    asked, _ = walk(rule, runner.terms(noisy(image, 512, seed=2)))
    shares = [float(np.mean(asked > step)) for step in range(MEMBERS)]
    return finished(cascade_graph(parts, rule, CARD), CARD, sampler=False)(CARD), shares


def rates(timings: dict[str, Timing], files: dict[str, File], samples: int) -> list[dict[str, Any]]:
    """One row per contestant."""
    rows = []
    per_sample = {
        name: [seconds / (LOOP_BATCH if name == LOOP else samples) for seconds in timing["wall"]]
        for name, timing in timings.items()
    }
    for name, ours in per_sample.items():
        pairs = (zip(per_sample[other], ours, strict=True) for other in (LOOP, PLAIN))
        loop, plain = (median([theirs / own for theirs, own in pair]) for pair in pairs)
        file = files.get(name, files[PLAIN])
        row: dict[str, Any] = {"file": name, "samples per second": 1 / median(ours)}
        row |= {"certificates per hour, n = 100,000": 3600 / CERTIFICATE / median(ours)}
        row |= {"times the published loop": loop, "times the plain file": plain}
        row |= {"members asked": sum(file.reached), "MMAC per sample": file.macs / 1e6}
        print(_words(row))
        rows.append(row)
    return rows


def _words(row: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else str(value) for key, value in row.items())


def decided(
    loop: Callable[[], Any], files: dict[str, File], image: npt.NDArray[np.uint8], *, images: int, repeats: int
) -> tuple[list[dict[str, Any]], dict[str, Timing]]:
    """What a decided radius costs beside n = 100,000, in samples, operations and time. The loop draws 1,000 samples."""
    found = decisions(CARD, image, images=images, seed=0)
    samples = float(np.mean([len(one.labels) for one in found]))
    chosen = typical(found, TYPICAL if images == IMAGES else 4)
    predictor = Predictor.load(files[TARGET].path)
    taken = run_decisions(predictor, chosen[:-1]) + len(chosen[-1].labels)
    timings = interleaved({LOOP: loop, DECIDED: partial(run_decisions, predictor, chosen)}, repeats=repeats)
    full = CERTIFICATE + SELECTION
    operations = full * files[PLAIN].macs, samples * files[TARGET].macs
    ours, theirs = ([s / of for s in timings[name]["wall"]] for name, of in ((DECIDED, taken), (LOOP, LOOP_BATCH)))
    rows = [
        {"question": f"n = 100,000, {LOOP}", "samples": float(full), "TMAC": operations[0] / 1e12}
        | {"seconds": full * median(theirs), "times faster": 1.0, "times fewer operations": 1.0},
        {"question": f"a decided radius, {TARGET}", "samples": samples, "TMAC": operations[1] / 1e12}
        | {"seconds": samples * median(ours)}
        | {"times faster": median([full * a / (samples * b) for a, b in zip(theirs, ours, strict=True)])}
        | {"times fewer operations": operations[0] / operations[1]},
    ]
    for row in rows:
        print(_words(row))
    return rows, timings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=Path, default=Path("runs") / "benchmarks", help="where the run of the trained members is kept"
    )
    parser.add_argument("--reached", help="share of samples that each member is asked of, instead: 1,0.3,0.15,0.1,0.05")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--decided", type=int, default=3, help="repeats of the decided radii")
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--certified", action="store_true", help="only what trained members certify, into the record")
    parser.add_argument("--quick", action="store_true", help="two repeats of few samples, no record")
    options = parser.parse_args()
    if options.certified:
        found = certified(options.runs, quick=options.quick)
        if not options.quick:
            path = RESULTS / "cheap_samples.json"
            document = json.loads(path.read_text(encoding="utf-8"))
            document["results"]["certified"] = found
            write_record(path, document)
        return
    facts: dict[str, Any] = {}
    if options.reached:
        reached = [float(share) for share in options.reached.split(",")]
    else:
        reached, facts = trained_shares(options.runs)
    if len(reached) != MEMBERS or reached[0] != 1 or sorted(reached, reverse=True) != reached:
        parser.error(f"--reached takes {MEMBERS} shares from 1 downwards, found {options.reached}")
    repeats, samples, images = (2, 256, 20) if options.quick else (options.repeats, options.samples, IMAGES)
    image = np.random.default_rng(0).integers(0, 256, size=SPEC.shape, dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        files, ensemble = write_files(Path(folder), image, reached)
        tensor = torch.from_numpy(image / np.float32(255))
        loop = partial(published_loop, ensemble, tensor, n=LOOP_BATCH, batch=LOOP_BATCH, classes=CLASSES)
        contestants: dict[str, Callable[[], Any]] = {LOOP: loop}
        for name, file in files.items():
            contestants[name] = partial(Predictor.load(file.path).certify, image, n=samples, n0=0, seed=1)
        timings = interleaved(contestants, repeats=repeats)
        found_rates = rates(timings, files, samples)
        answers, more = decided(loop, files, image, images=images, repeats=1 if options.quick else options.decided)
        sizes = {name: file.path.stat().st_size for name, file in files.items()}
    faster = next(row["times the published loop"] for row in found_rates if row["file"] == TARGET)
    claims = [
        verdict(f"{TARGET}, times the published loop", faster, 12.0),
        verdict("a decided radius, times fewer operations", answers[1]["times fewer operations"], 100.0),
        verdict("a decided radius, times the published loop", answers[1]["times faster"], 600.0),
    ]
    results: dict[str, Any] = {"rates": found_rates, DECIDED: answers, "claims": claims, "trained": facts}
    results |= {"reached": {name: file.reached for name, file in files.items()}, "bytes": sizes}
    if facts:
        results["certified"] = certified(options.runs, quick=options.quick)
    if not options.quick:
        seeds = {"parameters": "0 to 4", "image": 0, "noise": 1, "p_A": 0}
        chosen = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
        chosen |= {"runs": "RUNS", "shares wanted": reached, "seeds": seeds}
        record("cheap_samples", arguments=chosen, results=results | {"timings": timings, "timings, decided": more})


if __name__ == "__main__":
    main()
