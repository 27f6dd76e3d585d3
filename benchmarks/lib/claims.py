"""Sections of the scripts that check claims about speed and cost: every claim and every table their records hold."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.lib.tables import markdown
from robustinfer.smoothing.bounds import format_radius

__all__ = ["claims_section"]

# As they were called when the record was written.
_RENAMED = {"weights": "betas", "share_of_the_possible": "wald over mean"}
_RAW = {"timings", "raw", "recipes", "training", "environment", "arguments", "targets", "found", "met"}


def claims_section(document: Mapping[str, Any]) -> str:
    """The claims of a record with what was measured, then its tables.

    Raw timings and the epochs of trainings stay in the JSON.
    """
    results = document.get("results", document)
    found = [*_claims(results, ""), *_targets(document)]
    parts = []
    if found:
        parts.append(markdown(["of", "claim", "measured", "asked for", "holds"], found))
    parts += [f"{place}:\n\n{table}" if place else table for place, table in _tables(results, "")]
    return "\n".join(parts)


def _claims(value: Any, place: str) -> Iterator[list[str]]:
    """Every {"claim", "value", "at least" or "at most", "holds"}, wherever it is."""
    if isinstance(value, dict) and {"claim", "value", "holds"} <= value.keys():
        word = next((key for key in ("at least", "at most") if key in value), "")
        target = f"{word} {_cell(value.get(word, ''))}".strip()
        yield [place, value["claim"], _cell(value["value"]), target, "yes" if value["holds"] else "**no**"]
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _claims(inner, place if key in ("claims", "verdicts") else f"{place} {key}".strip())
    elif isinstance(value, list):
        for inner in value:
            yield from _claims(inner, place)


def _targets(document: Mapping[str, Any]) -> Iterator[list[str]]:
    """Claims in the form of three dictionaries: targets, found, met; of a record, or of each engine in it."""
    for place, part in {"": document, **document.get("engines", {})}.items():
        for name, target in part.get("targets", {}).items():
            holds = "yes" if part["met"][name] else "**no**"
            yield [place, name.replace("_", " "), _cell(part["found"][name]), _cell(target), holds]


def _tables(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Lists of like records, and dictionaries of like records, as tables."""
    if isinstance(value, list) and value and _alike(value) and "claim" not in value[0]:
        yield place, markdown(_header(value[0]), [_cells(row) for row in value])
    elif isinstance(value, dict) and len(value) > 1 and _alike(list(value.values())):
        first = next(iter(value.values()))
        lines = [[key, *_cells(row)] for key, row in value.items()]
        yield place, markdown(["", *_header(first)], lines)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in _RAW:
                yield from _tables(inner, f"{place}, {key}" if place else key)


def _alike(rows: list[Any]) -> bool:
    """Whether these are flat records with the same keys."""
    return all(
        isinstance(row, dict) and row and row.keys() == rows[0].keys() and all(map(_is_plain, row.values()))
        for row in rows
    )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _header(row: Mapping[str, Any]) -> list[str]:
    return [_RENAMED.get(key, key.replace("_", " ")) for key in row]


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [_radius(cell) if re.search(r"\b(radius|acr)\b", key) else _cell(cell) for key, cell in row.items()]


def _radius(value: Any) -> str:
    """A radius, rounded down where its digits would round it up."""
    shown = _cell(value)
    return format_radius(value, 4) if isinstance(value, float) and float(shown) > value else shown


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "" if value is None else str(value)
