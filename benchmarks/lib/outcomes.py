"""Rows of records, as the questions of RESULTS.md look at them: the best of a kind, and how often it was better."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.lib.details import Document

__all__ = ["Records", "Rows", "best_of", "claims", "seeds", "tally", "values"]

Rows = Mapping[str, Any]
Records = Mapping[str, Document]


def best_of(rows: Iterable[Rows], worth: Callable[[Rows], float]) -> dict[str, Rows]:
    """The best row of each kind."""
    found: dict[str, Rows] = {}
    for row in rows:
        if row["kind"] not in found or worth(row) > worth(found[row["kind"]]):
            found[row["kind"]] = row
    return found


def values(document: Document, key: str) -> list[float]:
    return sorted({row[key] for row in document["rows"].values()}, reverse=True)


def seeds(records: Iterable[Document]) -> str:
    seeds = sorted({row["seed"] for document in records for row in document["rows"].values()})
    return f"One training per row (seed {seeds[0]})." if len(seeds) == 1 else f"Seeds {', '.join(map(str, seeds))}."


def tally(outcomes: Sequence[str]) -> str:
    """How often better, worse, or neither."""
    words = ("better", "worse", "no significant difference")
    counts = {word: sum(one.startswith(word) for one in outcomes) for word in words}
    found = [f"{word} in {count} of {len(outcomes)}" for word, count in counts.items() if count]
    return ", ".join(found) or "not compared"


def claims(document: Document, *path: str) -> dict[str, float]:
    """The claims of a record, by their words."""
    found: Any = document["results"]
    for key in path:
        found = found[key]
    return {claim["claim"]: claim["value"] for claim in found}
