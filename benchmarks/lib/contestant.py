"""A contestant: one release and one way to do the work, in a process that waits for its turn.

So two releases can take turns within one run, and the time of each is that of its own process.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.lib.record import Timing, median

__all__ = ["Contestant", "commit_of", "take_turns", "times_as_fast"]

# What every contestant begins with: the release of the checkout, and nothing else. `turn(work)` waits for its turns.
PRELUDE = """
import sys, time
sys.path.insert(0, sys.argv[1])
import robustinfer
assert robustinfer.__file__.startswith(sys.argv[1]), robustinfer.__file__
def turn(work):
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        print(time.perf_counter() - wall, time.process_time() - cpu, flush=True)
"""


class Contestant:
    """A process that runs `program`, which ends with `turn(work)`; its arguments are in sys.argv[2:]."""

    def __init__(self, program: str, checkout: Path, *arguments: object) -> None:
        command = [sys.executable, "-c", PRELUDE + program, str(checkout), *map(str, arguments)]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd="/"
        )

    def turn(self) -> tuple[float, float]:
        """Do the work once: wall and processor seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        wall, cpu = self._process.stdout.readline().split()
        return float(wall), float(cpu)

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)


def take_turns(contestants: Mapping[str, Contestant], repeats: int) -> dict[str, Timing]:
    """Time each contestant `repeats` times, in turn, after one turn that does not count; then end them."""
    timings: dict[str, Timing] = {name: {"wall": [], "cpu": []} for name in contestants}
    try:
        for contestant in contestants.values():
            contestant.turn()
        for _ in range(repeats):
            for name, contestant in contestants.items():
                wall, cpu = contestant.turn()
                timings[name]["wall"].append(wall)
                timings[name]["cpu"].append(cpu)
    finally:
        for contestant in contestants.values():
            contestant.close()
    return timings


def commit_of(checkout: Path | None) -> str | None:
    """The commit of a checkout."""
    if checkout is None:
        return None
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def times_as_fast(timings: Mapping[str, Timing], one: str, other: str) -> float:
    """The median ratio of processor time, turn by turn: what the machine did beside them counts for neither."""
    pairs = zip(timings[one]["cpu"], timings[other]["cpu"], strict=True)
    return median([theirs / ours for ours, theirs in pairs])
