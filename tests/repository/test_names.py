"""Public names: what a module offers to others stands in its `__all__`."""

import ast
from collections.abc import Iterator
from pathlib import Path

from .test_rooms import ROOT, imported, modules

USERS = ("tests", "benchmarks", "examples", "docs")


def offered(tree: ast.Module) -> set[str]:
    """The names in `__all__`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and [getattr(one, "id", "") for one in node.targets] == ["__all__"]:
            return set(ast.literal_eval(node.value))
    return set()


OFFERED = {name: offered(tree) for _, name, tree in modules()}


def importing() -> Iterator[tuple[Path, str, ast.Module]]:
    """Every module of the packages, and what uses them: its file, its dotted name and its syntax tree."""
    yield from modules()
    for folder in USERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            yield file, name, ast.parse(file.read_text(encoding="utf-8"))


def test_what_another_module_imports_is_offered() -> None:
    """Tests alone may reach for a name with an underscore."""
    wrong = {
        f"{target}, imported by {importer}"
        for file, importer, tree in importing()
        for node, target in imported(file, importer, tree)
        if isinstance(node, ast.ImportFrom) and hidden(target, importer)
    }
    assert not wrong


def hidden(target: str, importer: str) -> bool:
    """Whether this names something in a module of ours that does not offer it."""
    home, _, name = target.rpartition(".")
    if home not in OFFERED or target in OFFERED or name in OFFERED[home]:
        return False
    return not (name.startswith("_") and importer.startswith("tests."))


def test_functions_and_classes_without_an_underscore_are_offered() -> None:
    defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    wrong = {
        f"{name}.{node.name}"
        for _, name, tree in modules()
        for node in tree.body
        if isinstance(node, defined) and not node.name.startswith("_") and node.name not in OFFERED[name]
    }
    assert not wrong
