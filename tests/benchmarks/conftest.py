"""What the tests of benchmarks share."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def root_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """`benchmarks` is a folder of the repository, not an installed package."""
    monkeypatch.syspath_prepend(FOLDER.parent)
