"""How fast certificates are made, against the engine's own speed and against the published loop.

    python benchmarks/speed/certify_speed.py [--repeats 7] [--memory-n 100000] [--quick]

Two graphs with random weights: 5 x ResNet-20 on 32x32 colour images, one small CNN on 28x28 grey images. In one run,
in turn:
  (a) the published loop: eager torch, noise from torch, votes counted in Python, batches of 1,000 samples (its default)
  (b) the engine alone, on ready-made input of the same batch
  (c) `Predictor.certify` of one image
  (d) `Predictor.certify_many` of 100 images
Claims: (c) and (d) reach 85 % of the samples per second of (b) on both graphs, and four times (a); a certificate of
100,000 samples takes less than 600 MB, measured in a process of its own.

"(a), our batch" is the same loop with the batch size of (b), (c) and (d). The machine's own limit is shown beside the
rates: a float32 matrix product, measured in the same run, divided by the operations of a sample. No engine is faster.

Every timing is in the record, as wall and as processor seconds. Rates are compared repeat by repeat, and the median of
the ratios counts.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robustinfer import InputSpec, Predictor
from robustinfer.engines.inspection import inspect_model
from robustinfer.throughput import measure_throughput

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.record import Timing, ensemble_file, interleaved, median, record, verdict

SIGMA = 0.25
LOOP_BATCH = 1000
IMAGES = 100

MEMORY = """
import json, re, sys, time
import numpy as np
from robustinfer import Predictor
predictor = Predictor.load(sys.argv[1])
image = np.full(predictor.card.input.shape, 100, dtype=np.uint8)
began = time.perf_counter()
certificate = predictor.certify(image, n=int(sys.argv[2]), seed=1)
# The peak of this program alone: getrusage would count the process it was forked from, too.
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1)) / 1024
print(json.dumps({"samples": certificate.samples_used, "seconds": time.perf_counter() - began, "peak_mb": peak}))
"""


@dataclass(frozen=True)
class Graph:
    """One graph of the comparison, and how many samples a timing takes."""

    name: str
    architecture: str
    members: int
    spec: InputSpec
    samples: int
    loop_samples: int
    share: float  # of the engine's speed that is asked for


GRAPHS = (
    Graph("5 x ResNet-20, 32x32", "resnet20", 5, InputSpec(3, 32, 32), 1024, 1000, 0.85),
    Graph("small CNN, 28x28", "cnn", 1, InputSpec(1, 28, 28), 50_000, 10_000, 0.85),
)


def published_loop(ensemble: Any, image: Any, *, n: int, batch: int, classes: int) -> list[int]:
    """The shape of the loop that is in wide use: one image, noise and votes a batch at a time, Python counting."""
    import torch

    counts = [0] * classes
    with torch.no_grad():
        for start in range(0, n, batch):
            copies = image.repeat((min(batch, n - start), 1, 1, 1))
            votes = ensemble(copies + torch.randn_like(copies) * SIGMA).argmax(1)
            for vote in votes.cpu().numpy():
                counts[vote] += 1
    return counts


def contestants(graph: Graph, predictor: Predictor, ensemble: Any, generator: Any) -> dict[str, Callable[[], Any]]:
    """(a) to (d). Each draws the samples that `samples_of` says."""
    import torch

    image = generator.integers(0, 256, size=graph.spec.shape, dtype=np.uint8)
    many = generator.integers(0, 256, size=(IMAGES, *graph.spec.shape), dtype=np.uint8)
    noisy = generator.normal(0.5, SIGMA, size=(predictor.batch, *graph.spec.shape)).astype(np.float32)
    tensor = torch.from_numpy(image / np.float32(255))
    batch = predictor.batch

    def engine_alone() -> None:
        for start in range(0, graph.samples, batch):
            predictor.engine.scores(noisy[: min(batch, graph.samples - start)])

    return {
        "a": lambda: published_loop(ensemble, tensor, n=graph.loop_samples, batch=LOOP_BATCH, classes=10),
        "a, our batch": lambda: published_loop(ensemble, tensor, n=graph.loop_samples, batch=batch, classes=10),
        "b": engine_alone,
        "c": lambda: predictor.certify(image, n=graph.samples, n0=0, seed=1),
        "d": lambda: list(predictor.certify_many(many, n=graph.samples // IMAGES, n0=0, seed=1, alpha=0.01)),
    }


def samples_of(graph: Graph) -> dict[str, int]:
    """The samples each contestant draws."""
    shared = graph.samples // IMAGES * IMAGES
    return {
        "a": graph.loop_samples,
        "a, our batch": graph.loop_samples,
        "b": graph.samples,
        "c": graph.samples,
        "d": shared,
    }


def ratios(timings: dict[str, Timing], samples: dict[str, int], one: str, other: str, clock: str) -> float:
    """The median, over the repeats, of how many times faster `one` draws a sample than `other`."""
    pairs = zip(timings[one][clock], timings[other][clock], strict=True)
    return median([(theirs / samples[other]) / (ours / samples[one]) for ours, theirs in pairs])


def memory(path: Path, n: int) -> dict[str, float]:
    """Peak memory of a process that certifies one image with n samples."""
    answer = subprocess.run(
        [sys.executable, "-c", MEMORY, str(path), str(n)], capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(answer.stdout)
    return found


def measure(graph: Graph, path: Path, repeats: int) -> dict[str, Any]:
    """The speeds of one graph."""
    ensemble = ensemble_file(graph.architecture, graph.members, graph.spec, path, sigma=SIGMA)
    predictor = Predictor.load(path)
    timings = interleaved(contestants(graph, predictor, ensemble, np.random.default_rng(0)), repeats=repeats)
    samples = samples_of(graph)
    rates = {name: samples[name] / median(timing["wall"]) for name, timing in timings.items()}
    machine = measure_throughput(predictor, flops=inspect_model(path).flops, batches=(predictor.batch,))
    print(f"\n{graph.name}, batch {predictor.batch}: " + ", ".join(f"({k}) {v:.0f}/s" for k, v in rates.items()))
    print(f"the machine's limit: {machine.gflops:.0f} GFLOP/s, {machine.limit:.0f}/s")
    claims = [verdict(f"({one})/(b)", ratios(timings, samples, one, "b", "wall"), graph.share) for one in ("c", "d")]
    claims += [verdict(f"({one})/(a)", ratios(timings, samples, one, "a", "wall"), 4.0) for one in ("c", "d")]
    cpu = {f"{one}/{other}": ratios(timings, samples, one, other, "cpu") for one, other in ("cb", "db", "ca", "da")}
    return {
        "batch": predictor.batch,
        "samples": samples,
        "samples_per_second": rates,
        "processor_time_ratios": cpu,
        "machine": {"gflops": machine.gflops, "samples_per_second_at_most": machine.limit},
        "rates": [
            {"what": what, "samples per second": rate}
            for what, rate in {**{f"({name})": rate for name, rate in rates.items()}, "limit": machine.limit}.items()
        ],
        "claims": claims,
        "timings": timings,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--memory-n", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="two repeats, 2,000 samples for the memory, no record")
    arguments = parser.parse_args()
    repeats, memory_n = (2, 2_000) if arguments.quick else (arguments.repeats, arguments.memory_n)
    with tempfile.TemporaryDirectory() as folder:
        paths = {graph.name: Path(folder) / f"{graph.architecture}.onnx" for graph in GRAPHS}
        results = {graph.name: measure(graph, paths[graph.name], repeats) for graph in GRAPHS}
        for name, found in results.items():
            found["memory"] = memory(paths[name], memory_n)
            claim = verdict(f"MB at n = {memory_n}", found["memory"]["peak_mb"], 600, at_least=False)
            found["claims"].append(claim)
    if not arguments.quick:
        record("certify_speed", arguments=vars(arguments) | {"seeds": {"images": 0, "noise": 1}}, results=results)


if __name__ == "__main__":
    main()
