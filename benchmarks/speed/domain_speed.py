"""What soundness in floating point costs: the 16-bit domain beside the 8-bit one, and that one beside an older release.

    python benchmarks/speed/domain_speed.py [--before CHECKOUT] [--repeats 15] [--quick]

Two graphs with random parameters, as in certify_speed.py. Each contestant is a process of its own that certifies one
image again and again when it is told to, so that two releases can take turns within one run; a contestant's time is
that of its own process. CHECKOUT is a folder with an older release, e.g. made by `git worktree add CHECKOUT COMMIT`.

Claims: certify on uint8 images reaches 97 % of the older release's samples per second; floating images reach 70 % of
uint8 on the large graph. For the small graph the figure is stated.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.contestant import Contestant, commit_of, take_turns, times_as_fast
from benchmarks.lib.record import ensemble_file, median, record, verdict
from benchmarks.speed.certify_speed import GRAPHS, SIGMA, Graph

ROOT = Path(__file__).resolve().parents[2]

CERTIFY = """
import numpy as np
from robustinfer import Predictor
predictor = Predictor.load(sys.argv[2])
image = np.random.default_rng(0).integers(0, 256, predictor.card.input.shape, dtype=np.uint8)
image = image if sys.argv[4] == "uint8" else image.astype(np.float32) / np.float32(255)
turn(lambda: predictor.certify(image, n=int(sys.argv[3]), n0=0, alpha=0.01, seed=1))
"""


def measure(graph: Graph, file: Path, before: Path | None, repeats: int) -> dict[str, Any]:
    """The speeds of one graph, in turn."""
    ensemble_file(graph.architecture, graph.members, graph.spec, file, sigma=SIGMA)
    wanted = {"8-bit": (ROOT, "uint8"), "16-bit": (ROOT, "float32")}
    if before is not None:
        wanted["8-bit, before"] = (before.resolve(), "uint8")
    contestants = {
        name: Contestant(CERTIFY, folder, file, graph.samples, kind) for name, (folder, kind) in wanted.items()
    }
    timings = take_turns(contestants, repeats)
    rates = {name: graph.samples / median(timing["wall"]) for name, timing in timings.items()}
    print(f"\n{graph.name}: " + ", ".join(f"{name} {rate:.0f}/s" for name, rate in rates.items()))
    return {
        "samples": graph.samples,
        "rates": [{"domain": name, "samples per second": rate} for name, rate in rates.items()],
        "claims": list(claims(graph, timings)),
        "timings": timings,
    }


def claims(graph: Graph, timings: dict[str, dict[str, list[float]]]) -> list[dict[str, Any]]:
    """What the 16-bit domain costs, and what the 8-bit one has lost since the older release."""
    large = graph.members > 1
    found = [verdict("16-bit / 8-bit", times_as_fast(timings, "16-bit", "8-bit"), 0.70 if large else 0.0)]
    if "8-bit, before" in timings:
        found.append(verdict("8-bit / 8-bit, before", times_as_fast(timings, "8-bit", "8-bit, before"), 0.97))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="a checkout of an older release")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="two repeats, no record")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = {
            graph.name: measure(
                graph,
                Path(folder) / f"{graph.architecture}.onnx",
                arguments.before,
                2 if arguments.quick else arguments.repeats,
            )
            for graph in GRAPHS
        }
    if arguments.quick:
        print(json.dumps({name: found["claims"] for name, found in results.items()}))
        return
    before = commit_of(arguments.before)
    record("domain_speed", arguments={"repeats": arguments.repeats, "before": before}, results=results)


if __name__ == "__main__":
    main()
