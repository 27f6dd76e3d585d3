"""How fast the exported graph is against the ensemble it came from, and what the sampler costs.

    python benchmarks/speed/export_speed.py [--repeats 15] [--threads 2] [--batches 1 2 4 ...] [--quick]

5 x ResNet-20 with random weights on 32x32 colour images, in one run, in turn:
  (a) eager torch, in inference mode
  (b) the fused ONNX file in ONNX Runtime
  (c) the same file with a sampler, used for its scores only
  (d) the sampler: one image, `count` samples, 8-bit or 16-bit noise, against (b) on as many ready-made images
Claims: (b) is at least 3 times as fast as (a) at the batch size where it gains most, which the claim names; beside it
stand every other batch size, and the two sides each at its own best one. (c) takes at most 1.05 times as long as (b);
noise of the 8-bit domain adds at most 5 % to the time of the scores, that of the 16-bit domain at most a fifth.

Every timing is in the record, as wall and as processor seconds. Times are compared repeat by repeat, and the median of
the ratios counts, so that a busy moment of the machine hits both sides.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from robust.export import export_ensemble

from robustinfer import Card, InputSpec
from robustinfer.engines.onnx import session_options

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.record import Timing, ensemble_file, interleaved, median, record, verdict

MEMBERS = 5
ARCHITECTURE = "resnet20"
SPEC = InputSpec(3, 32, 32)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
ADDED = {"8-bit": 0.05, "16-bit": 0.2}  # to the time of the scores, at most
COUNT = 128  # samples of one run of the sampler
SIGMA = 0.25


def session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """ONNX Runtime as the runtime uses it."""
    return onnxruntime.InferenceSession(path, session_options(threads), providers=["CPUExecutionProvider"])


def ratio(timings: dict[str, Timing], one: str, other: str, clock: str = "wall") -> float:
    """The median, over the repeats, of the time of `one` in units of the time of `other`."""
    return median([mine / theirs for mine, theirs in zip(timings[one][clock], timings[other][clock], strict=True)])


def compare_batches(
    ensemble: Any, plain: Any, sampling: Any, batches: Sequence[int], repeats: int
) -> list[dict[str, Any]]:
    """(a), (b) and (c) at each batch size; small batches are run several times a timing."""
    rows = []
    print(f"{'batch':>5} {'eager ms/image':>15} {'ONNX ms/image':>15} {'times faster':>13} {'with sampler':>13}")
    for batch in batches:
        images = torch.rand(batch, *SPEC.shape, generator=torch.Generator().manual_seed(batch))
        feed = {"image": images.numpy()}
        calls = max(1, 16 // batch)

        def eager(images: torch.Tensor = images, calls: int = calls) -> None:
            with torch.inference_mode():
                for _ in range(calls):
                    ensemble(images)

        def scores(graph: Any, feed: dict[str, Any] = feed, calls: int = calls) -> None:
            for _ in range(calls):
                graph.run(["scores"], feed)

        contestants: dict[str, Callable[[], Any]] = {
            "eager": eager,
            "onnx": lambda run=scores: run(plain),  # type: ignore[misc]
            "onnx with sampler": lambda run=scores: run(sampling),  # type: ignore[misc]
        }
        timings = interleaved(contestants, repeats=repeats)
        per_image = {name: median(timing["wall"]) / calls / batch for name, timing in timings.items()}
        row = {
            "batch": batch,
            "calls": calls,
            "seconds_per_image": per_image,
            "times_faster": ratio(timings, "eager", "onnx"),
            "times_faster_processor": ratio(timings, "eager", "onnx", "cpu"),
            "scores_only_with_sampler": ratio(timings, "onnx with sampler", "onnx"),
            "timings": timings,
        }
        eager_ms, onnx_ms = per_image["eager"] * 1e3, per_image["onnx"] * 1e3
        faster, sampler = row["times_faster"], row["scores_only_with_sampler"]
        print(f"{batch:>5} {eager_ms:>15.2f} {onnx_ms:>15.2f} {faster:>13.2f} {sampler:>13.3f}")
        rows.append(row)
    return rows


def compare_sampler(plain: Any, sampling: Any, repeats: int) -> dict[str, Any]:
    """(d): the time of `COUNT` samples in units of the time of the scores of as many images.

    The sampler's run has the clean image in its batch too, so the other side gets one image more.
    """
    images = np.random.default_rng(0).random((COUNT + 1, *SPEC.shape), dtype=np.float32)
    numbers = {"seed": 1, "first": 0, "count": COUNT}
    feed = {"image": images[:1], **{name: np.asarray(number, np.int64) for name, number in numbers.items()}}
    timings = interleaved(
        {
            "scores": lambda: plain.run(["scores"], {"image": images}),
            "8-bit": lambda: sampling.run(["votes"], {**feed, "noise": np.asarray(0, np.int64)}),
            "16-bit": lambda: sampling.run(["votes"], {**feed, "noise": np.asarray(1, np.int64)}),
        },
        repeats=repeats,
    )
    added = {kind: ratio(timings, kind, "scores") - 1 for kind in ("8-bit", "16-bit")}
    processor = {kind: ratio(timings, kind, "scores", "cpu") - 1 for kind in ("8-bit", "16-bit")}
    return {"count": COUNT, "added": added, "added_processor": processor, "timings": timings}


def measure(folder: Path, *, batches: Sequence[int], repeats: int, threads: int) -> dict[str, Any]:
    """All figures."""
    torch.set_num_threads(threads)
    ensemble = ensemble_file(ARCHITECTURE, MEMBERS, SPEC, folder / "plain.onnx", sigma=SIGMA)
    card = Card(classes=tuple("0123456789"), input=SPEC, sigma=SIGMA)
    export_ensemble(ensemble, card, folder / "sampler.onnx", sampler=True, samples=100)
    plain, sampling = (session(folder / name, threads) for name in ("plain.onnx", "sampler.onnx"))
    rows = compare_batches(ensemble, plain, sampling, batches, repeats)
    sampler = compare_sampler(plain, sampling, repeats)
    best = max(rows, key=lambda row: row["times_faster"])
    throughput = {name: min(row["seconds_per_image"][name] for row in rows) for name in ("eager", "onnx")}
    claims = [
        verdict(f"times faster than eager torch, batch {best['batch']}", best["times_faster"], 3.0),
        verdict(
            "scores only, sampler file", median([r["scores_only_with_sampler"] for r in rows]), 1.05, at_least=False
        ),
        *(verdict(f"{kind} noise adds", sampler["added"][kind], ADDED[kind], at_least=False) for kind in ADDED),
    ]
    print(f"       each at its own best batch size: {throughput['eager'] / throughput['onnx']:.2f} times faster")
    table = [
        {"batch": row["batch"], **{f"{name}, ms per image": 1e3 * t for name, t in row["seconds_per_image"].items()}}
        | {"times faster": row["times_faster"]}
        for row in rows
    ]
    return {
        "by batch size": table,
        "batches": rows,
        "best_seconds_per_image": throughput,
        "sampler": sampler,
        "claims": claims,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2, help="of torch and of ONNX Runtime")
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--quick", action="store_true", help="two repeats of two batch sizes, no record")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.batches, arguments.repeats = [1, 16], 2
    with tempfile.TemporaryDirectory() as folder:
        results = measure(Path(folder), batches=arguments.batches, repeats=arguments.repeats, threads=arguments.threads)
    if not arguments.quick:
        record(
            "export_speed", arguments=vars(arguments) | {"seeds": {"weights": "0 to 4", "noise": 1}}, results=results
        )


if __name__ == "__main__":
    main()
