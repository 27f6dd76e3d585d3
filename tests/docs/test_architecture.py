"""docs/architecture.md: its walks name real functions, and its table of rooms is the one that the imports obey."""

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from .conftest import ROOT

TEXT = (ROOT / "docs" / "architecture.md").read_text()
RULES = ROOT / "tests" / "repository" / "test_rooms.py"


def named(file: Path) -> set[str]:
    """Functions and classes of a module, and the methods of its classes as `Class.method`."""
    names = {file.stem}
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return names


def test_every_hop_exists() -> None:
    hops = re.findall(r"\[`([\w.]+)`\]\(\.\./([\w/]+\.py)\)", TEXT)
    assert len(hops) > 45
    assert len(re.findall(r"\]\(\.\./.*?\.py\)", TEXT)) == len(hops), "a hop that is not `[`name`](../file.py)`"
    for name, file in hops:
        assert name in named(ROOT / file), (name, file)


WALKS = dict(re.findall(r"^## (Training|Certifying|An HTTP request|Exporting).*?\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S))


def test_there_are_four_walks_of_several_hops() -> None:
    assert len(WALKS) == 4
    for walk, rows in WALKS.items():
        assert rows.count("\n| [`") >= 8, walk


def mentioned(file: Path) -> set[str]:
    """The names that the code of a module mentions, beyond defining or importing them."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }


# Where a walk begins, and what a worker makes of the application before there is any request.
BEGINNINGS = {"command", "Launcher", "AsgiLauncher", "Application"}


def test_every_hop_is_used_by_the_code_of_its_walk() -> None:
    """Not only defined: a function that nobody on the way calls any more is no hop."""
    for walk, rows in WALKS.items():
        hops = re.findall(r"\[`([\w.]+)`\]\(\.\./([\w/]+\.py)\)", rows)
        used = set[str]().union(*(mentioned(ROOT / file) for _, file in hops))
        assert {name for name, _ in hops if name.rpartition(".")[2] not in used} <= BEGINNINGS, walk


def rows() -> Iterator[tuple[str, str, set[str], set[str]]]:
    """The table of rooms: import name, what it may import of this repository, packages at the top, packages inside."""
    section = TEXT.partition("## Rooms")[2].partition("## Words")[0]
    for folder, may, top, inside in re.findall(
        r"^\| `([\w/]+)` \| (.*?) ?\| (.*?) ?\| (.*?) ?\| .* \|$", section, re.M
    ):
        yield dotted(folder), may, set(re.findall(r"[\w-]+", top)), set(re.findall(r"[\w-]+", inside))


def rooms() -> dict[str, set[str]]:
    """What each room may import of this repository, by import names."""
    table: dict[str, set[str]] = {}
    for own, may, _, _ in rows():
        others = set(map(dotted, re.findall(r"`([\w/]+)`", may)))
        if "rooms of `train` above" in may:
            others = others - {"robust.train"} | {room for room in table if room.startswith("robust.train")}
        table[own] = {"*"} if may.startswith("everything") else others
    return table


def dotted(folder: str) -> str:
    name = folder.replace("/", ".")
    return name if name.startswith("robustinfer") else f"robust.{name}"


def test_every_package_is_a_room_of_the_table() -> None:
    packages = {
        dotted(str(file.parent.relative_to(ROOT)))
        for top in ("robustinfer", "train", "export", "serve")
        for file in (ROOT / top).rglob("__init__.py")
    }
    assert packages - {"robust.train.recipes"} == set(rooms()) - {
        *("robust.train.recipe", "robust.export.exporter", "robustinfer.errors"),  # modules that stand for some others
    }


def test_the_table_is_the_one_that_the_imports_obey() -> None:
    spec = importlib.util.spec_from_file_location("rules", RULES)
    assert spec is not None
    assert spec.loader is not None
    rules = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = rules  # where a dataclass looks for its module
    spec.loader.exec_module(rules)
    assert rooms() == {room: set(may) for room, may in rules.MAY_IMPORT.items()}
    assert {own: rules.packages(" ".join(top), " ".join(inside)) for own, _, top, inside in rows()} == rules.PACKAGES
