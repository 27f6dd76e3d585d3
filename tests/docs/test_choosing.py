"""docs/choosing.md: its tables are those of the certificates, and votes that are counted again give recorded radii."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robustinfer.certificate_file import Entry
from robustinfer.smoothing.bounds import format_radius

from .conftest import ROOT
from .pages import read


@pytest.fixture
def choosing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that makes them; `docs` is a folder of the repository, not an installed package."""
    monkeypatch.syspath_prepend(ROOT)
    from docs import choosing

    return choosing


def test_the_tables_are_those_of_the_certificates(choosing: Any) -> None:
    entries: Sequence[Entry] = choosing.entries()
    expected = {
        "sigma": choosing.sigma_rows(),
        "n": choosing.n_rows(entries),
        "alpha": choosing.alpha_rows(entries),
    }
    text = read("docs/choosing.md")
    for name, table in expected.items():
        found = re.search(f"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", text, re.DOTALL)
        assert found is not None, name
        assert found[1] == table, "run `make docs`"


def test_both_averages_of_ten_thousand_samples_are_those_that_are_named(choosing: Any) -> None:
    radii = choosing.rethought(choosing.entries(), n=10_000, alpha=0.001).clip(min=0)
    record = json.loads(choosing.RECORD.read_text())["rows"]["0.5/0/boosted-equal"]["n=10000"]
    here, there = format_radius(radii.mean()), format_radius(record["acr"])
    text = " ".join(read("docs/choosing.md").split())
    assert f"10,000 have {here} here, and {there} in the [results]" in text


def test_the_verdict_on_members_is_that_of_the_records(choosing: Any) -> None:
    from docs import members

    found = members.comparisons()
    text = read("docs/choosing.md")
    for name, table in {"members": members.verdict(found), "signs": members.under_noise()}.items():
        shown = re.search(f"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", text, re.DOTALL)
        assert shown is not None, name
        assert shown[1] == table, "run `make docs`"
    short = [one for one in found if one.seconds <= members.HALF_HOUR]
    assert len(short) >= 17
    assert not [one for one in short if one.outcome == "better"], "the table of budgets says so"
    longer = [one for one in found if one.seconds > members.HALF_HOUR]
    outcomes = sorted((one.outcome, f"{one.gain:.1f}") for one in longer)
    assert outcomes == [("better", "0.4"), ("neither", "1.2")], "so does its second line"


def test_an_ensemble_is_compared_with_what_costs_as_much(
    choosing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from docs import members

    def row(kind: str, seconds: float, radii: list[float], stages: int = 1) -> dict[str, Any]:
        certified = {"radii": radii, "acr": float(np.mean(radii))}
        about = {"kind": kind, "sigma": 0.25, "seed": 0, "stages": [{}] * stages}
        return {**about, "training": {"cpu_seconds": seconds}, "n=1000": certified}

    rows = {
        "single": row("single", 109, [0.5, 0.5, 0.5]),
        "dearer": row("single", 111, [0.9, 0.9, 0.9]),
        "wider": row("wider", 90, [0.4, 0.4, 0.4]),
        "boosted": row("boosted", 100, [0.5, 0.6, 0.7], stages=2),
    }
    (tmp_path / "l2_mnist.json").write_text(json.dumps({"rows": rows}))
    monkeypatch.setattr(members, "RESULTS", tmp_path)
    (found,) = members.comparisons()
    assert (found.kind, found.members, found.seconds, found.outcome) == ("boosted", 2, 100, "neither")
    assert found.gain == pytest.approx(20)
    assert found.error == pytest.approx(100 * (0.1 / 3**0.5) / 0.5)


def test_counting_the_votes_again_gives_the_radii_that_were_recorded(choosing: Any) -> None:
    """All votes: the same radii. A tenth of them: what other certificates, with noise of their own, had on average."""
    entries: Sequence[Entry] = choosing.entries()
    own = np.array([entry.correct_radius for entry in entries])
    again = choosing.rethought(entries, n=100_000, alpha=0.001).clip(min=0)
    assert np.abs(again - own).max() <= 2e-6  # the slack of the noise is left out, and radii are rounded down
    rows = json.loads((ROOT / "benchmarks" / "results" / "l2_long.json").read_text())["rows"]
    recorded = np.array(rows["0.5/0/boosted-equal"]["n=10000"]["radii"])
    fewer = choosing.rethought(entries, n=10_000, alpha=0.001).clip(min=0)
    difference = fewer - recorded
    assert abs(difference.mean()) <= 4 * difference.std() / len(difference) ** 0.5


def test_the_pictures_are_drawn(choosing: Any, tmp_path: Path) -> None:
    from PIL import Image

    from docs import members

    choosing.draw(choosing.entries(), tmp_path / "choosing.png")
    members.draw(members.comparisons(), tmp_path / "members.png")
    for name in ("choosing.png", "members.png"):
        with Image.open(tmp_path / name) as drawn, Image.open(ROOT / "docs" / name) as kept:
            assert drawn.size == kept.size
            assert len(np.unique(np.asarray(drawn.convert("RGB")).reshape(-1, 3), axis=0)) > 100
            corner = np.asarray(drawn.convert("RGBA"))[0, 0]
        assert tuple(corner) == (255, 255, 255, 255)  # opaque: dark pages show it, too
