"""Rows that were measured under noise, image by image: their table, and paired differences from one of them."""

from collections.abc import Mapping, Sequence
from math import hypot
from statistics import fmean, stdev
from typing import Any

from benchmarks.lib.tables import Rows, grouped, markdown
from benchmarks.lib.verdicts import paired, word

__all__ = ["Difference", "difference", "noise_table"]

Difference = tuple[float, float]  # mean and standard error over images

SHARES = {"right": "accuracy under noise", "all_right": "correct on every copy"}


def _by_image(rows: Sequence[Mapping[str, Any]], what: str) -> list[float]:
    """The share of copies that are classified correctly, or whether all are, for each image; the mean over seeds."""
    found = []
    for counts in zip(*(row["noise"]["counts"] for row in rows), strict=True):
        shares = [count / rows[0]["noise"]["copies"] for count in counts]
        found.append(fmean(share == 1 for share in shares) if what == "all_right" else fmean(shares))
    return found


def difference(ours: Sequence[Mapping[str, Any]], rival: Sequence[Mapping[str, Any]], what: str) -> Difference:
    """How much better one row is than another over the same images, by the seeds that both have.

    With several seeds the standard error covers them, too: the difference varies from one pair of trainings to another.
    """
    seeds = sorted({row["seed"] for row in ours} & {row["seed"] for row in rival})
    one, other = ({row["seed"]: row for row in rows} for rows in (ours, rival))
    mean, error = paired(*(_by_image([rows[seed] for seed in seeds], what) for rows in (one, other)))
    each = [paired(_by_image([one[seed]], what), _by_image([other[seed]], what))[0] for seed in seeds]
    between = stdev(each) / len(each) ** 0.5 if len(each) > 1 else 0.0
    return mean, hypot(error, between)


def noise_table(rows: Rows, against: str) -> str:
    """One line per way of training: the accuracy under noise, and the difference from the row `against` in points."""
    named = {name: found for (name,), found in grouped(rows, "name").items()}
    counted = all("mmac" in row for row in rows.values())
    lines = []
    for name, found in named.items():
        seeds = ", ".join(str(row["seed"]) for row in found)
        members = ", ".join(map(str, sorted({len(row["stages"]) for row in found})))
        spent = fmean(row["training"]["cpu_seconds"] for row in found)
        line = [found[0]["label"], members, f"{spent:.0f}", seeds]
        line += [f"{found[0]['mmac']:.1f}"] if counted else []
        for what in SHARES:
            line.append(f"{100 * fmean(row['noise'][what] for row in found):.1f}")
            common = {row["seed"] for row in found} & {row["seed"] for row in named.get(against, ())}
            line.append(_points(difference(found, named[against], what)) if name != against and common else "")
        lines.append(line)
    columns = [title for words in SHARES.values() for title in (f"{words} %", "difference, points")]
    operations = ["MMAC per sample"] if counted else []
    return markdown(["training", "members", "train CPU s", "seeds", *operations, *columns], lines)


def _points(found: Difference) -> str:
    mean, error = found
    return f"{100 * mean:+.2f} ± {100 * error:.2f}, {word(mean, error)}"
