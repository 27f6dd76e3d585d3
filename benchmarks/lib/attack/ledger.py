"""The record of the tests: one row per test and engine, kept as soon as it is known, by several processes at once."""

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.lib.record import environment, write_record
from benchmarks.lib.tables import markdown

__all__ = ["Ledger", "Observation", "table"]


@dataclass(frozen=True)
class Observation:
    """What one test of one engine showed. `figures` are the numbers behind the words."""

    holds: bool
    observed: str
    figures: Mapping[str, Any] = field(default_factory=dict)


class Ledger:
    """results/server.json."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def has(self, engine: str, test: str) -> bool:
        """Whether this test of this engine is done."""
        return test in self._read().get("results", {}).get(engine, {})

    def add(
        self, engine: str, test: str, promise: str, seen: Observation, *, command: str, known: Mapping[str, Any]
    ) -> None:
        """Keep a row, in the place of an earlier one. `known` is the environment before the test began."""
        with self._locked():
            document = self._read()
            document |= {"benchmark": "server", "environment": dict(known)}
            document.setdefault("arguments", {})[engine] = {"start": command}
            document.setdefault("results", {}).setdefault(engine, {})[test] = {
                "promise": promise,
                "holds": seen.holds,
                "observed": seen.observed,
                "date": known["date"],
                "commit": known["commit"],
                "load": [known["load"][0], environment()["load"][0]],
                "figures": dict(seen.figures),
            }
            write_record(self._path, document)

    def _read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._path.read_text()) if self._path.exists() else {}
        return found

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self._path.with_suffix(".lock")
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
            lock.unlink(missing_ok=True)


def table(document: Mapping[str, Any]) -> str:
    """Test, promise, and what was observed with each engine."""
    results = document["results"]
    engines = list(results)
    tests = list(dict.fromkeys(test for rows in results.values() for test in rows))
    lines = []
    for test in tests:
        found = {engine: results[engine][test] for engine in engines if test in results[engine]}
        promise = next(iter(found.values()))["promise"]
        lines.append([test, promise, *(_cell(found.get(engine)) for engine in engines)])
    return markdown(["test", "promise", *(f"observed: {engine}" for engine in engines)], lines)


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "not run"
    return f"{'holds' if row['holds'] else '**does not hold**'}: {row['observed']}"
