"""What the scheduler costs: `certify_many` beside an older release, and submitted requests beside `certify_many`.

    python benchmarks/speed/scheduler_speed.py [--before CHECKOUT] [--repeats 11] [--quick]

Two graphs with random parameters, as in certify_speed.py, and 16 images each. Each contestant is a process of its own:
  before        `certify_many` of the older release (CHECKOUT, e.g. made by `git worktree add CHECKOUT COMMIT`)
  certify_many  the same, of this one: whole batches, in order
  submit        every image submitted at once by a client of its own: runs of one turn, shared fairly
Claims, as ratios of processor time, turn by turn, the median counting: certify_many is at least 0.97 times as fast as
before; submit at least 0.95 times as fast as certify_many.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.contestant import Contestant, commit_of, take_turns, times_as_fast
from benchmarks.lib.record import Timing, ensemble_file, median, record, verdict
from benchmarks.speed.certify_speed import GRAPHS, SIGMA, Graph

ROOT = Path(__file__).resolve().parents[2]
IMAGES = 16

LOAD = """
import numpy as np
from robustinfer import Predictor, Request
predictor = Predictor.load(sys.argv[2])
images = np.random.default_rng(0).integers(0, 256, (int(sys.argv[3]), *predictor.card.input.shape), dtype=np.uint8)
n = int(sys.argv[4])
"""
MANY = LOAD + "turn(lambda: list(predictor.certify_many(images, n=n, alpha=0.01, seed=1)))"
SUBMIT = (
    LOAD
    + """
def submit():
    requests = [Request(image=image, n=n, alpha=0.01, seed=seed) for seed, image in enumerate(images)]
    futures = [predictor.submit(request, client=str(seed)) for seed, request in enumerate(requests)]
    return [future.result() for future in futures]
turn(submit)
"""
)


def measure(graph: Graph, file: Path, before: Path | None, repeats: int) -> dict[str, Any]:
    """The speeds of one graph, in turn."""
    ensemble_file(graph.architecture, graph.members, graph.spec, file, sigma=SIGMA)
    n = max(graph.samples // IMAGES, 100)
    wanted = {"certify_many": (MANY, ROOT), "submit": (SUBMIT, ROOT)}
    if before is not None:
        wanted["before"] = (MANY, before.resolve())
    contestants = {name: Contestant(program, folder, file, IMAGES, n) for name, (program, folder) in wanted.items()}
    timings = take_turns(contestants, repeats)
    rates = {name: n * IMAGES / median(timing["wall"]) for name, timing in timings.items()}
    print(f"\n{graph.name}: " + ", ".join(f"{name} {rate:.0f}/s" for name, rate in rates.items()))
    return {
        "images": IMAGES,
        "n": n,
        "rates": [{"what": name, "samples per second": rate} for name, rate in rates.items()],
        "claims": claims(timings),
        "timings": timings,
    }


def claims(timings: dict[str, Timing]) -> list[dict[str, Any]]:
    """What submitting costs, and what the scheduler has lost since the older release."""
    found = [verdict("submit / certify_many", times_as_fast(timings, "submit", "certify_many"), 0.95)]
    if "before" in timings:
        found.append(verdict("certify_many / before", times_as_fast(timings, "certify_many", "before"), 0.97))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="a checkout of an older release")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--quick", action="store_true", help="two repeats, no record")
    arguments = parser.parse_args()
    repeats = 2 if arguments.quick else arguments.repeats
    with tempfile.TemporaryDirectory() as folder:
        results = {
            graph.name: measure(graph, Path(folder) / f"{graph.architecture}.onnx", arguments.before, repeats)
            for graph in GRAPHS
        }
    if arguments.quick:
        print(json.dumps({name: found["claims"] for name, found in results.items()}))
        return
    before = commit_of(arguments.before)
    record("scheduler_speed", arguments={"repeats": repeats, "before": before}, results=results)


if __name__ == "__main__":
    main()
