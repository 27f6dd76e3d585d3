"""How many samples and certificates a second cheaper files give, against the published loop and the plain file.

    python benchmarks/speed/cheap_samples.py [--reached 1,0.3,0.15,0.1,0.05] [--repeats 7] [--quick]

5 x ResNet-20 with random parameters on 32x32 colour images. In one run, in turn:
  published loop       eager torch, noise from torch, votes counted in Python, batches of 1,000 samples (its default)
  plain, int8          `Predictor.certify` with the exported file, in float32 and in 8-bit integers
  heads, heads int8    the same with five heads on one trunk (stem and two of three groups), which is passed once
  cascade, ...         each of these four as a cascade
Random members agree on nothing, so the thresholds of the cascades are set such that the share REACHED of the noisy
samples goes to each member in turn; the default adds up to 1.6 members. What trained members reach is measured by
`cascade_rules.py`. The shares that the files really have, on other noise, are in the record.

Claim: cascade and int8 together draw at least 12 times the samples per second of the published loop at equal n. A
certificate has n = 100,000 samples. Every timing is in the record, as wall and as processor seconds; rates are compared
repeat by repeat, and the median of the ratios counts.
"""

import argparse
import copy
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from robust.export.acceptance import Images
from robust.export.cascade import Rule, margins, walk
from robust.export.cascade_graph import Parts, PartsRunner, cascade_graph, parts_of
from robust.export.fusion import fuse
from robust.export.onnx_file import finished, onnx_file
from robust.export.precision import calibration_copies, lower
from robust.train.members import Member, build_member
from robust.train.members.ensemble import Ensemble
from robust.train.members.trunk import share_trunk

from robustinfer import Card, InputSpec, Predictor
from robustinfer.smoothing.domains import noise_name
from robustinfer.smoothing.noise import add_noise

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.record import Timing, interleaved, median, record, verdict
from benchmarks.speed.certify_speed import LOOP_BATCH, SIGMA, published_loop

MEMBERS, SPLIT, CLASSES = 5, 2, 10
SPEC = InputSpec(3, 32, 32)
CARD = Card(classes=tuple("0123456789"), input=SPEC, name="5 x resnet20", sigma=SIGMA)
CERTIFICATE = 100_000
LOOP, PLAIN, TARGET = "published loop", "plain", "cascade int8"

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
        stay = round(share * terms.shape[1])
        ordered = np.sort(margin)
        limits.append(float(np.float32((ordered[stay - 1] + ordered[min(stay, len(ordered) - 1)]) / 2)))
        alive = alive[margin <= limits[-1]]
    return Rule(tuple(range(len(terms))), tuple(limits))


def write_files(
    folder: Path, image: npt.NDArray[np.uint8], reached: Sequence[float]
) -> tuple[dict[str, Path], dict[str, list[float]], Ensemble]:
    """The files by name, the shares of samples that reach each member of the cascades, and the plain ensemble."""
    paths: dict[str, Path] = {}
    shares: dict[str, list[float]] = {}
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
        contents = {name: build(CARD), _joined(name, "int8"): lowered(CARD)}
        for kind, own in ((_joined(name, "cascade"), parts), (_joined(name, "cascade int8"), parts.lowered(copies))):
            contents[kind], shares[kind] = _cascade(own, image, reached)
        for kind, content in contents.items():
            paths[kind] = folder / f"{kind.replace(' ', '-')}.onnx"
            paths[kind].write_bytes(content)
    assert plain is not None
    return paths, shares, plain


def _joined(name: str, kind: str) -> str:
    return kind if name == PLAIN else f"{name} {kind}"


def _cascade(parts: Parts, image: npt.NDArray[np.uint8], reached: Sequence[float]) -> tuple[bytes, list[float]]:
    """The file of a cascade with these leaving rates, and the rates on other noise."""
    runner = PartsRunner(parts)
    rule = rule_of(runner.terms(noisy(image, 512, seed=0)), reached)
    asked, _ = walk(rule, runner.terms(noisy(image, 512, seed=2)))
    shares = [float(np.mean(asked > step)) for step in range(MEMBERS)]
    return finished(cascade_graph(parts, rule, CARD), CARD, sampler=False)(CARD), shares


def contestants(
    paths: dict[str, Path], ensemble: Ensemble, image: npt.NDArray[np.uint8], samples: int
) -> dict[str, Callable[[], Any]]:
    """The published loop and a certificate with each file, of as many samples each."""
    tensor = torch.from_numpy(image / np.float32(255))
    found: dict[str, Callable[[], Any]] = {
        LOOP: lambda: published_loop(ensemble, tensor, n=samples, batch=LOOP_BATCH, classes=CLASSES)
    }
    for name, path in paths.items():
        predictor = Predictor.load(path)
        found[name] = lambda predictor=predictor: predictor.certify(image, n=samples, n0=0, seed=1)  # type: ignore[misc]
    return found


def rates(timings: dict[str, Timing], shares: dict[str, list[float]], samples: int) -> list[dict[str, Any]]:
    """One row per contestant."""
    rows = []
    for name, timing in timings.items():
        pairs = [(timings[other]["wall"], timing["wall"]) for other in (LOOP, PLAIN)]
        loop, plain = (median([theirs / ours for theirs, ours in zip(*pair, strict=True)]) for pair in pairs)
        speed = samples / median(timing["wall"])
        row: dict[str, Any] = {"file": name, "samples per second": speed}
        row |= {"certificates per hour, n = 100,000": 3600 * speed / CERTIFICATE}
        row |= {"times the published loop": loop, "times the plain file": plain}
        row["members asked"] = sum(shares[name]) if name in shares else float(MEMBERS)
        print(", ".join(f"{key} {value:.4g}" if isinstance(value, float) else str(value) for key, value in row.items()))
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--reached", default="1,0.3,0.15,0.1,0.05", help="share of samples that each member is asked of"
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--quick", action="store_true", help="two repeats of 256 samples, no record")
    options = parser.parse_args()
    reached = [float(share) for share in options.reached.split(",")]
    if len(reached) != MEMBERS or reached[0] != 1 or sorted(reached, reverse=True) != reached:
        parser.error(f"--reached takes {MEMBERS} shares from 1 downwards, found {options.reached}")
    repeats, samples = (2, 256) if options.quick else (options.repeats, options.samples)
    image = np.random.default_rng(0).integers(0, 256, size=SPEC.shape, dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        paths, shares, ensemble = write_files(Path(folder), image, reached)
        sizes = {name: path.stat().st_size for name, path in paths.items()}
        timings = interleaved(contestants(paths, ensemble, image, samples), repeats=repeats)
    table = rates(timings, shares, samples)
    faster = next(row["times the published loop"] for row in table if row["file"] == TARGET)
    claims = [verdict(f"{TARGET}, times the published loop", faster, 12.0)]
    results = {"rates": table, "claims": claims, "reached": shares, "bytes": sizes, "timings": timings}
    if not options.quick:
        arguments = vars(options) | {"seeds": {"parameters": "0 to 4", "image": 0, "noise": 1}}
        record("cheap_samples", arguments=arguments, results=results)


if __name__ == "__main__":
    main()
