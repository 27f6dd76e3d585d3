"""What `import robustinfer` costs.

    python benchmarks/speed/import_time.py [--repeats 15]

Claim: it costs at most 1.5 times importing numpy, scipy.special and onnxruntime, which every application of it needs
anyway, and loads no torch; so does importing all that a certificate needs, the Predictor and its engine. Each import
is timed in a process of its own, in turn; the time to start Python is not counted. The processor's time is compared,
because a shared machine moves the clock more than the work.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.record import median, record, verdict

IMPORTS = {
    "needed": "import numpy, scipy.special, onnxruntime",
    "robustinfer": "import robustinfer",
    "Predictor and engine": "from robustinfer import Predictor; import onnxruntime",
}
CODE = """
import json, sys, time
wall, cpu = time.perf_counter(), time.process_time()
{imports}
timing = [time.perf_counter() - wall, time.process_time() - cpu]
heavy = [name for name in ("torch", "onnx", "scipy.stats", "statsmodels", "matplotlib") if name in sys.modules]
print(json.dumps([*timing, heavy]))
"""


def once(imports: str) -> tuple[float, float, list[str]]:
    """Wall seconds, processor seconds and heavy modules of one import, in a fresh process."""
    answer = subprocess.run(
        [sys.executable, "-c", CODE.format(imports=imports)], capture_output=True, text=True, check=True, timeout=120
    )
    wall, cpu, heavy = json.loads(answer.stdout)
    return wall, cpu, heavy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    timings: dict[str, dict[str, list[float]]] = {name: {"wall": [], "cpu": []} for name in IMPORTS}
    loaded: set[str] = set()
    for repeat in range(arguments.repeats + 1):
        for name, imports in IMPORTS.items():
            wall, cpu, heavy = once(imports)
            if name != "needed":
                loaded |= set(heavy)
            if repeat:  # the first one fills the file cache
                timings[name]["wall"].append(wall)
                timings[name]["cpu"].append(cpu)
    seconds = {name: {clock: median(values) for clock, values in timing.items()} for name, timing in timings.items()}
    for name, timing in seconds.items():
        print(f"{name:24} {1000 * timing['wall']:7.1f} ms, {1000 * timing['cpu']:7.1f} ms of the processor")
    base = seconds["needed"]["cpu"]
    claims = [
        verdict("import robustinfer / needed", seconds["robustinfer"]["cpu"] / base, 1.5, at_least=False),
        verdict("Predictor and engine / needed", seconds["Predictor and engine"]["cpu"] / base, 1.5, at_least=False),
        verdict("heavy modules loaded", len(loaded), 0, at_least=False),
    ]
    results = {"seconds": seconds, "heavy_modules": sorted(loaded), "claims": claims, "timings": timings}
    record("import_time", arguments=vars(arguments), results=results)


if __name__ == "__main__":
    main()
