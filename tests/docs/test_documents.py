"""Links of the pages lead somewhere, and the names and numbers of the paper's map are complete."""

import ast
import json
import re
from pathlib import Path

import pytest

from .conftest import ROOT
from .pages import PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            assert anchor in headings(linked), target


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_the_first_page_is_short_enough_to_be_read_to_the_end() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 900


def test_results_of_the_first_page_are_those_of_the_records() -> None:
    """Looked up here by hand; that the table is complete is checked where `make docs` is an example."""
    text = (ROOT / "README.md").read_text()
    rows = json.loads((ROOT / "benchmarks/results/cifar10_l2.json").read_text())["rows"].values()
    found = {row["label"]: row["n=2000"] for row in rows if row["seed"] == 0}
    cells = []
    for label in ("boosted, stages of 5 and 2 epochs", "one member, 8 epochs"):
        share = 100 * sum(radius >= 0.25 for radius in found[label]["radii"]) / found[label]["images"]
        cells.append(f"{int(1000 * found[label]['acr']) / 1000:.3f} ({share:.1f}%)")
    assert f"| {' | '.join(cells)} |" in text


def test_the_guarantee_quotes_the_record_of_samples() -> None:
    """What decisions and tolerances cost: each row of the two tables, and the sentence on the means."""
    text = (ROOT / "docs/guarantee.md").read_text()
    record = json.loads((ROOT / "benchmarks/results/sample_economy.json").read_text())["results"]
    decided = [row for row in record["two-class"]["decisions"] if row["radius"] > 0.001]
    assert len(decided) == 6
    for row in decided:
        wald = f"{100 * row['wald_over_mean']:.0f} %"
        cells = (f"{row['mean_samples']:,.0f}", f"{row['times_fewer']:.0f}", wald, f"{row['points_lost']:.2f}")
        assert f"| {row['sigma']:.2f} | {row['radius']:.2f} | {' | '.join(cells)} |" in text
    for two, top in zip(*(record[bound]["tolerance"] for bound in ("two-class", "top-class")), strict=True):
        pair = (f"{one['mean_radius_lost']:.3f} | {100 * one['share_beyond_tolerance']:.0f} %" for one in (two, top))
        assert f"| {two['sigma']:.2f} | {' | '.join(pair)} |" in text
    claims = {bound: {one["claim"]: one["value"] for one in record[bound]["claims"]} for bound in record}
    words = " at a mean loss of {:.3f} (top-class bound: {:.1f} times, {:.3f}), means over the four sigmas."
    fewer, lost = (
        [claims[bound][f"tolerance 0.05: {name}"] for bound in ("two-class", "top-class")]
        for name in ("times fewer samples", "mean radius lost")
    )
    assert f"{fewer[0]:.1f} times fewer" + words.format(lost[0], fewer[1], lost[1]) in text


def test_names_of_the_paper_map_exist() -> None:
    links = re.findall(r"\[`(\w+)`\]\(\.\./([\w/]+\.py)\)", (ROOT / "docs" / "paper-map.md").read_text())
    assert len(links) > 40
    for name, file in links:
        body = ast.parse((ROOT / file).read_text()).body
        named = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert name in named, (name, file)


def test_every_numbered_statement_of_the_paper_is_mapped() -> None:
    text = (ROOT / "docs" / "paper-map.md").read_text()
    for number in range(1, 12):
        assert f"| ({number}) " in text
    for statement in ("Lemma 1", "Lemma 2", "Lemma 3", "Lemma 4", "Lemma 5", "Theorem 1", "Theorem 2", "Theorem 3"):
        assert statement in text
    for number in range(1, 6):
        assert f"| {number}, " in text
    for table in ("Table 1", "Table 2", "Figure 1", "Figure 2", "Algorithm 1"):
        assert table in text
