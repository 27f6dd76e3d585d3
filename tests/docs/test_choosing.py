"""docs/choosing.md: its tables are those of the certificates, and votes that are counted again give recorded radii."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robustinfer.certificate_file import Entry

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


def test_the_picture_is_drawn(choosing: Any, tmp_path: Path) -> None:
    from PIL import Image

    choosing.draw(choosing.entries(), tmp_path / "picture.png")
    with Image.open(tmp_path / "picture.png") as drawn, Image.open(ROOT / "docs" / "choosing.png") as kept:
        assert drawn.size == kept.size
        assert len(np.unique(np.asarray(drawn.convert("RGB")).reshape(-1, 3), axis=0)) > 100
        corner = np.asarray(drawn.convert("RGBA"))[0, 0]
    assert tuple(corner) == (255, 255, 255, 255)  # opaque: dark pages show it, too
