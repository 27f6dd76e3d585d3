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
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.record import ensemble_file, median, record, verdict
from benchmarks.speed.certify_speed import GRAPHS, SIGMA, Graph

ROOT = Path(__file__).resolve().parents[2]

# A contestant: loads the file, then certifies n samples per line of its input and prints wall and processor seconds.
CONTESTANT = """
import sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np
from robustinfer import Predictor
import robustinfer
assert robustinfer.__file__.startswith(sys.argv[1]), robustinfer.__file__
predictor = Predictor.load(sys.argv[2])
image = np.random.default_rng(0).integers(0, 256, predictor.card.input.shape, dtype=np.uint8)
image = image if sys.argv[4] == "uint8" else image.astype(np.float32) / np.float32(255)
for _ in sys.stdin:
    wall, cpu = time.perf_counter(), time.process_time()
    predictor.certify(image, n=int(sys.argv[3]), n0=0, alpha=0.01, seed=1)
    print(time.perf_counter() - wall, time.process_time() - cpu, flush=True)
"""


class Contestant:
    """One release and one type of pixels, in a process that waits for its turn."""

    def __init__(self, checkout: Path, file: Path, samples: int, pixels: str) -> None:
        command = [sys.executable, "-c", CONTESTANT, str(checkout), str(file), str(samples), pixels]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=file.parent
        )

    def turn(self) -> tuple[float, float]:
        """Certify once: wall and processor seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        wall, cpu = self._process.stdout.readline().split()
        return float(wall), float(cpu)

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)


def measure(graph: Graph, file: Path, before: Path | None, repeats: int) -> dict[str, Any]:
    """The speeds of one graph, in turn."""
    ensemble_file(graph.architecture, graph.members, graph.spec, file, sigma=SIGMA)
    wanted = {"8-bit": (ROOT, "uint8"), "16-bit": (ROOT, "float32")}
    if before is not None:
        wanted["8-bit, before"] = (before.resolve(), "uint8")
    contestants = {name: Contestant(folder, file, graph.samples, kind) for name, (folder, kind) in wanted.items()}
    timings: dict[str, dict[str, list[float]]] = {name: {"wall": [], "cpu": []} for name in contestants}
    try:
        for contestant in contestants.values():
            contestant.turn()  # a warm-up
        for _ in range(repeats):
            for name, contestant in contestants.items():
                wall, cpu = contestant.turn()
                timings[name]["wall"].append(wall)
                timings[name]["cpu"].append(cpu)
    finally:
        for contestant in contestants.values():
            contestant.close()
    rates = {name: graph.samples / median(timing["wall"]) for name, timing in timings.items()}
    print(f"\n{graph.name}: " + ", ".join(f"{name} {rate:.0f}/s" for name, rate in rates.items()))
    return {
        "samples": graph.samples,
        "rates": [{"domain": name, "samples per second": rate} for name, rate in rates.items()],
        "claims": list(claims(graph, timings)),
        "timings": timings,
    }


def claims(graph: Graph, timings: dict[str, dict[str, list[float]]]) -> list[dict[str, Any]]:
    """Ratios of processor time, turn by turn: what the machine did beside it counts for neither."""

    def ratio(one: str, other: str) -> float:
        pairs = zip(timings[one]["cpu"], timings[other]["cpu"], strict=True)
        return median([theirs / ours for ours, theirs in pairs])

    large = graph.members > 1
    found = [verdict("16-bit / 8-bit", ratio("16-bit", "8-bit"), 0.70 if large else 0.0)]
    if "8-bit, before" in timings:
        found.append(verdict("8-bit / 8-bit, before", ratio("8-bit", "8-bit, before"), 0.97))
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
    commit = arguments.before and subprocess.run(
        ["git", "-C", str(arguments.before), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    before = commit.stdout.strip() if commit else None
    record("domain_speed", arguments={"repeats": arguments.repeats, "before": before}, results=results)


if __name__ == "__main__":
    main()
