"""What the benchmark scripts share: models with random weights, interleaved timing, and the record of a run.

A record, benchmarks/results/NAME.json, holds the results with everything needed to judge them: versions, commit,
machine, arguments, seeds and the raw timings.
"""

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from robustinfer import Card, InputSpec
from robustinfer.files import write_text

__all__ = [
    "BENCHMARKS",
    "RESULTS",
    "Timing",
    "ensemble_file",
    "environment",
    "interleaved",
    "median",
    "record",
    "verdict",
    "write_record",
]

BENCHMARKS = Path(__file__).parents[1]
RESULTS = BENCHMARKS / "results"
PACKAGES = ("robustinfer", "numpy", "scipy", "onnxruntime", "torch", "statsmodels")

Timing = dict[str, list[float]]  # "wall" and "cpu" seconds, one entry per repeat


def interleaved(contestants: Mapping[str, Callable[[], Any]], *, repeats: int) -> dict[str, Timing]:
    """Time each contestant `repeats` times, in turn, so that a busy moment of the machine hits all of them.

    Every contestant runs once before, untimed.
    """
    for run in contestants.values():
        run()
    timings: dict[str, Timing] = {name: {"wall": [], "cpu": []} for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            timings[name]["wall"].append(time.perf_counter() - wall)
            timings[name]["cpu"].append(time.process_time() - cpu)
    return timings


def median(values: Sequence[float]) -> float:
    """The median, which one busy moment does not move."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def ensemble_file(
    architecture: str, members: int, spec: InputSpec, path: Path, *, classes: int = 10, sigma: float = 0.25
) -> Any:
    """Export `members` fresh members as one ONNX file; returns the torch ensemble. Speed does not depend on weights."""
    import torch
    from robust.export import export_ensemble
    from robust.train.members import build_member
    from robust.train.members.ensemble import Ensemble

    mean, std = torch.full((spec.channels,), 0.5), torch.full((spec.channels,), 0.25)
    networks = [
        build_member(architecture, input=spec, classes=classes, mean=mean, std=std, seed=seed)
        for seed in range(members)
    ]
    ensemble = Ensemble(networks, [1.0 / (t + 1) for t in range(members)]).freeze()
    card = Card(classes=tuple(map(str, range(classes))), input=spec, name=f"{members} x {architecture}", sigma=sigma)
    export_ensemble(ensemble, card, path, samples=100)
    return ensemble


def environment() -> dict[str, Any]:
    """Versions, commit and machine."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None,
    }


def record(name: str, *, arguments: Mapping[str, Any], results: Mapping[str, Any]) -> Path:
    """Write benchmarks/results/NAME.json."""
    path = RESULTS / f"{name}.json"
    document = {"benchmark": name, "environment": environment(), "arguments": dict(arguments), "results": dict(results)}
    write_record(path, document)
    print(f"written: {path}")
    return path


def write_record(path: Path, document: Mapping[str, Any]) -> None:
    """Write a record with one line per fact, row or result: small, and a change shows which row it was."""
    write_text(path, _lines(document, 2) + "\n")


def _lines(value: Any, depth: int, indent: str = "") -> str:
    """JSON whose objects are broken into lines down to this depth."""
    if not depth or not isinstance(value, Mapping) or not value:
        return json.dumps(value)
    inner = indent + " "
    items = (f"{inner}{json.dumps(key)}: {_lines(item, depth - 1, inner)}" for key, item in value.items())
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"


def verdict(claim: str, value: float, target: float, *, at_least: bool = True) -> dict[str, Any]:
    """One claim: what was measured, what is asked for, whether it holds. Also printed."""
    holds = value >= target if at_least else value <= target
    word = "at least" if at_least else "at most"
    print(f"{'holds' if holds else 'FAILS':6} {claim}: {value:.4g} (asked for: {word} {target:g})")
    return {"claim": claim, "value": value, word: target, "holds": holds}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
