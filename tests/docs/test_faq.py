"""docs/faq.md and docs/troubleshooting.md: figures that follow from formulas, and messages that exist."""

import re

from robustinfer.smoothing.bounds import clopper_pearson_lower, radius_top_class

from .conftest import ROOT
from .pages import read


def test_the_grey_levels_follow_from_the_number_of_values() -> None:
    text = read("docs/faq.md")
    rows = re.findall(r"^\| (\d+) x (\d+), (grey|colour) \| ([\d,]+) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) == 4
    for height, width, colour, values, cells in rows:
        size = int(height) * int(width) * (3 if colour == "colour" else 1)
        assert size == int(values.replace(",", ""))
        assert cells.split(" | ") == [f"{255 * radius / size**0.5:.2f}" for radius in (0.25, 0.5, 1.0)]


def test_no_radius_exceeds_what_unanimous_votes_prove() -> None:
    found = re.search(
        r"With n = ([\d,]+) votes no radius exceeds ([\d.]+) sigma, with ([\d,]+) votes ([\d.]+)", read("docs/faq.md")
    )
    assert found is not None
    for votes, times in (found.groups()[:2], found.groups()[2:]):
        n = int(votes.replace(",", ""))
        largest = radius_top_class(clopper_pearson_lower(n, n, 0.9 * 0.001), sigma=1.0)
        assert float(times) - 0.01 < largest <= float(times)


def test_the_messages_of_troubleshooting_are_those_of_the_code() -> None:
    """Each part of a quoted message, between its dots, stands in some source file."""
    files = [path for room in ("robustinfer", "train", "export", "serve") for path in (ROOT / room).rglob("*.py")]
    source = re.sub(r'"\s*f?"', "", "\n".join(path.read_text() for path in files))  # strings that Python joins
    source = re.sub(r"\{[^{}]*\}", "...", source)
    quoted = re.findall(r'\*"(.*?)"\*', read("docs/troubleshooting.md"), re.DOTALL)
    assert len(quoted) >= 8
    for message in quoted:
        for part in " ".join(message.split()).split("..."):
            assert part.strip() in source, message
