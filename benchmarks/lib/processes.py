"""Processes seen from outside: who belongs to a server, and what they have used (Linux)."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["family", "processor_seconds"]


def family(pid: int) -> set[int]:
    """A process and all its descendants that are alive."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[int(folder.name)] = int(fields[1])
    found, grown = {pid}, True
    while grown:
        more = {child for child, parent in parents.items() if parent in found} - found
        found, grown = found | more, bool(more)
    return found & parents.keys()


def processor_seconds(pids: Iterable[int]) -> float:
    """Processor time of these processes so far."""
    return sum(map(_ticks, pids)) / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields: list[Any] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0
