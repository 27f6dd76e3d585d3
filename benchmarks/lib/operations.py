"""What the record of operations says: certified accuracy against multiply-adds, as a table, a plot and a verdict."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.figures import plot_operations
from benchmarks.lib.tables import markdown
from benchmarks.lib.verdicts import paired, word
from robustinfer.smoothing.bounds import format_radius

__all__ = ["RADII", "answer", "section"]

RADII = (0.0, 0.125, 0.25)
NAMES = {
    "single": "one network",
    "wider": "a wider one",
    "independent": "independent members",
    "boosted": "boosted members",
    "heads": "heads on one trunk",
    "student": "a distilled student",
}

Row = Mapping[str, Any]


def certified(row: Row, radius: float) -> float:
    """The share of images that are right with at least this radius, in %."""
    radii: Sequence[float] = row["radii"]
    return 100 * sum(found > 0 and found >= radius for found in radii) / len(radii)


def operations(row: Row) -> float:
    """Multiply-adds of a prediction."""
    return float(row["macs_per_sample"] * row["n"])


def better_than_cheaper(rows: Sequence[Row]) -> list[tuple[Row, int, int]]:
    """Each row that has cheaper ones, cheapest first; how many it is significantly better than, of how many."""
    found = []
    for row in sorted(rows, key=operations):
        cheaper = [other for other in rows if operations(other) < operations(row)]
        beaten = sum(word(*paired(row["radii"], other["radii"])) == "better" for other in cheaper)
        if cheaper:
            found.append((row, beaten, len(cheaper)))
    return found


def section(document: Mapping[str, Any], plots: Path) -> str:
    """The whole table, and the plot."""
    rows = _ordered(document)
    plot_operations(rows, NAMES, plots / "operations.png")
    plain = {row["name"]: row for row in rows if row["file"] == "plain"}
    header = ["training", "file", "members asked", "MMAC per sample", "GMAC per prediction"]
    header += [*(f"certified at {radius:g}, %" for radius in RADII), "ACR", "ACR minus one network, plain"]
    header += ["ACR minus the plain file"]
    lines = []
    for row in rows:
        cells = [NAMES.get(row["name"], row["name"]), row["file"], f"{row['members_asked']:.2f} of {row['members']}"]
        cells += [f"{row['macs_per_sample'] / 1e6:.1f}", f"{operations(row) / 1e9:.1f}"]
        cells += [f"{certified(row, radius):.1f}" for radius in RADII]
        rivals = plain.get("single"), plain[row["name"]]
        cells += [format_radius(row["acr"]), *(_difference(row, other) for other in rivals)]
        lines.append(cells)
    images = min(len(row["radii"]) for row in rows)
    missing = [NAMES[name] for name in NAMES if name not in plain]
    absent = f" Not measured yet: {', '.join(missing)}." if missing else ""
    about = (
        f"{images} test images, n = {document['n']:,}, alpha = {rows[0]['alpha']:g}, sigma {document['sigma']:g}; "
        f"differences over the same images, ± one standard error. One training per row.{absent}"
    )
    return f"![ACR against operations](../plots/operations.png)\n\n{about}\n\n{markdown(header, lines)}"


def _ordered(document: Mapping[str, Any]) -> list[Row]:
    """The rows, ways to train in the order of their names; a way's files as they were measured."""
    places = {name: place for place, name in enumerate(NAMES)}
    return sorted(document["rows"].values(), key=lambda row: places.get(row["name"], len(places)))


def _difference(row: Row, other: Row | None) -> str:
    if other is None or row is other:
        return ""
    mean, error = paired(row["radii"], other["radii"])
    return f"{mean:+.4f} ± {error:.4f}"


def _verdict(rows: Sequence[Row], single: Row | None) -> str:
    """Which files certify more than everything cheaper, by paired differences."""
    compared = better_than_cheaper(rows)
    if best := [row for row, beaten, cheaper in compared if beaten == cheaper]:
        return f"these are significantly better than every file that costs less: {'; '.join(map(_described, best))}."
    largest = max(rows, key=lambda row: (row["acr"], -operations(row)))
    several = "every" if any(beaten for _, beaten, _ in compared) else "a"
    verdict = f"no file is significantly better than {several} cheaper one. The largest ACR is that of "
    verdict += _described(largest)
    gained = _difference(largest, single)
    return f"{verdict}: {gained} from one network, plain." if gained else f"{verdict}."


def _described(row: Row) -> str:
    name = NAMES.get(row["name"], row["name"])
    return f"{name}, {row['file']} ({operations(row) / 1e9:.1f} GMAC, ACR {format_radius(row['acr'])})"


def answer(records: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """Which files are better than cheaper ones, and what cascades and whole numbers cost."""
    document = records["operations"]
    rows = _ordered(document)
    plain = {row["name"]: row for row in rows if row["file"] == "plain"}
    parts = []
    for kind in ("cascade", "int8"):
        for row in (row for row in rows if row["file"] == kind):
            asked = f" asks {row['members_asked']:.2f} of {row['members']} members," if kind == "cascade" else ""
            lost = _difference(row, plain[row["name"]])
            parts.append(f"{kind} of {NAMES.get(row['name'], row['name'])}{asked} {lost}")
    images = min(len(row["radii"]) for row in rows)
    plot = "![ACR against operations](plots/operations.png)\n"
    verdict = f"On traffic signs, n = {document['n']:,}, {_verdict(rows, plain.get('single'))}"
    return verdict, f"{plot}{images} test images. ACR minus that of the plain file: {'; '.join(parts)}.\n"
