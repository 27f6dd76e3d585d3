"""The first page of the benchmarks names every script, and every set of rows that one of them measures."""

import re

import pytest

from .conftest import FOLDER

README = (FOLDER / "README.md").read_text()
SCRIPTS = sorted(
    f"{room}/{script.name}" for room in ("accuracy", "speed", "trust") for script in (FOLDER / room).glob("*.py")
)


def test_every_script_is_named_and_exists() -> None:
    named = set(re.findall(r"`((?:accuracy|speed|trust)/\w+\.py)", README))
    assert named == set(SCRIPTS)


@pytest.mark.parametrize("script", ["attacked", "certified"])
def test_every_set_is_named(script: str) -> None:
    docstring = (FOLDER / "accuracy" / f"{script}.py").read_text().partition("Sets, each")[2].partition("\n\n")[0]
    sets = re.findall(r"^  (\w+) ", docstring, re.MULTILINE)
    assert len(sets) >= 4
    row = "\n".join(line for line in README.splitlines() if line.startswith(f"| `accuracy/{script}.py --set"))
    assert [name for name in sets if f"`{name}`" not in row and f"--set {name}`" not in row] == []
