"""The scripts on real data run and resume, and the records in the repository are those of its rows and pages."""

import importlib
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import FOLDER

DATA = os.environ.get("ROBUST_DATA", "data")


def run(script: str, *options: str) -> None:
    answer = subprocess.run([sys.executable, FOLDER / script, *options], capture_output=True, text=True, timeout=280)
    assert answer.returncode == 0, answer.stderr


def test_a_misspelt_row_is_named_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [
        "--set",
        "published",
        "--data",
        str(tmp_path),
        "--rows",
        "single,bosted",
        "--out",
        str(tmp_path / "o.json"),
    ]
    monkeypatch.setattr(sys, "argv", ["certified.py", *words])
    with pytest.raises(SystemExit, match="there is no bosted here, but boosted, "):
        runpy.run_path(str(FOLDER / "accuracy" / "certified.py"), run_name="__main__")
    assert not list(tmp_path.iterdir())


QUICK = {
    "linf_mnist": ("attacked.py", "--set", "mnist", "--deltas", "0.3", "--attacks", "pgd-20x10"),
    "linf_full": ("attacked.py", "--set", "full", "--deltas", "0.3", "--attacks", "pgd-20x10"),
    "l2_mnist": ("certified.py", "--set", "mnist", "--sigmas", "0.5"),
    "l2_published": ("certified.py", "--set", "published", "--sigmas", "0.5"),
    "l2_long": ("certified.py", "--set", "long", "--sigmas", "0.5"),
    "l2_forms": ("l2_forms.py",),
}


@pytest.mark.slow
@pytest.mark.skipif(not (Path(DATA) / "MNIST").is_dir(), reason="needs MNIST in the folder that ROBUST_DATA names")
@pytest.mark.parametrize("record", QUICK)
def test_quick_runs_write_every_row_and_resume_where_they_stopped(record: Any, tmp_path: Path) -> None:
    script, *options = QUICK[record]
    out = tmp_path / f"{record}.json"
    options += ["--data", DATA, "--quick", "--out", str(out), "--runs", str(tmp_path / "runs")]
    names = "single,exact-corrective" if record == "linf_mnist" else "single,boosted"
    run(f"accuracy/{script}", *options, "--rows", names)
    first = json.loads(out.read_text())
    assert first["quick"]
    assert len(first["rows"]) == 2
    run(f"accuracy/{script}", *options, "--rows", names)
    assert json.loads(out.read_text())["rows"] == first["rows"]


def test_rendering_the_records_gives_the_pages_of_the_repository(tmp_path: Path) -> None:
    from benchmarks.lib.details import pages
    from benchmarks.lib.topics import results_page

    details = pages(FOLDER / "results", tmp_path / "plots")
    page = results_page(FOLDER / "results", details)
    assert (FOLDER / "RESULTS.md").read_text() == page, "run `make results`"
    assert len(page.splitlines()) <= 150
    assert {path.stem: path.read_text() for path in (FOLDER / "details").glob("*.md")} == details, "run `make results`"
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        path.name for path in (FOLDER / "plots").iterdir()
    }


def test_every_page_links_to_files_that_are_there() -> None:
    for page in (FOLDER / "RESULTS.md", *(FOLDER / "details").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize(
    "record",
    [
        "linf_mnist",
        "linf_full",
        "cifar10",
        "l2_mnist",
        "l2_published",
        "l2_long",
        "cifar10_l2",
        "cifar10_fast",
        "gtsrb_l2",
    ],
)
def test_the_kind_of_a_recorded_row_is_that_of_its_definition_and_fits_its_training(record: Any) -> None:
    rows = {row.name: row for row in importlib.import_module(f"benchmarks.lib.rows.{record}").SET.rows}
    recorded = json.loads((FOLDER / "results" / f"{record}.json").read_text())["rows"].values()
    for found in recorded:
        definition = rows[found["name"]]
        assert (found["kind"], found["label"]) == (definition.kind, definition.label)
        several, apart = len(found["stages"]) > 1, found["recipe"]["booster"] == "independent"
        fitting = ("independent", "student") if apart else ("boosted",) if several else ("single", "wider")
        assert found["kind"] in fitting


def test_a_radius_is_rounded_down_alike_in_the_readme_and_here() -> None:
    acr = json.loads((FOLDER / "results" / "l2_long.json").read_text())["rows"]["0.5/0/boosted-equal"]["n=100000"][
        "acr"
    ]
    assert acr == pytest.approx(1.6739, abs=5e-5)
    for page in (FOLDER.parent / "README.md", FOLDER / "RESULTS.md", FOLDER / "details" / "l2_long.md"):
        text = page.read_text()
        assert "1.673" in text, page
        assert "1.674" not in text, page
