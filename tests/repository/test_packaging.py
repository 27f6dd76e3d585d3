"""pyproject.toml: a wheel holds every folder of the four packages, and every file in them."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

from .test_rooms import FOLDERS, ROOT

SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def files() -> list[Path]:
    """The files of the four packages, but for what the interpreter left there."""
    found = [file for top in FOLDERS for file in (ROOT / top).rglob("*") if file.is_file()]
    return [file.relative_to(ROOT) for file in found if "__pycache__" not in file.parts]


def package(file: Path) -> str:
    top, *rooms = file.parent.parts
    return ".".join([FOLDERS[top], *rooms])


def test_every_folder_is_a_package_of_the_wheel() -> None:
    assert sorted(SETUPTOOLS["packages"]) == sorted({package(file) for file in files()})


def test_every_file_that_is_not_python_matches_a_pattern() -> None:
    patterns = SETUPTOOLS["package-data"]["*"]
    left_out = [
        str(file)
        for file in files()
        if file.suffix != ".py" and not any(fnmatch(file.name, pattern) for pattern in patterns)
    ]
    assert not left_out
