"""No test depends on luck: none sleeps, draws numbers without a seed, or gives up because the machine is busy."""

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from ..waiting import PATIENCE
from .test_rooms import ROOT

WAITING, FIXED = "tests/waiting.py", "tests/conftest.py"
LIMITED = {
    **dict.fromkeys(("wait", "join", "communicate", "result", "exception", "settimeout", "Timer", "timeout"), 0),
    "wait_for": 1,
}
"""What waits for something or sets a limit for it, and which argument is the limit."""
REACHED = 0.1
"""Seconds: a limit that is no longer is meant to be reached."""
DRAWS = {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "normal", "bernoulli", "multinomial"}


def calls() -> Iterator[tuple[str, int, str, ast.Call]]:
    """Every call in the tests: the file, the line, the dotted name of what is called, and the call."""
    for file in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield str(file.relative_to(ROOT)), node.lineno, ast.unparse(node.func), node


def test_only_the_helper_sleeps() -> None:
    sleeping = [(file, line) for file, line, name, _ in calls() if name in ("time.sleep", "sleep", "asyncio.sleep")]
    assert {file for file, _ in sleeping} == {WAITING}, sleeping


def test_every_random_number_has_a_seed() -> None:
    unseeded = []
    for file, line, name, call in calls():
        module, _, function = name.rpartition(".")
        given = {word.arg for word in call.keywords}
        wrong = {
            "torch": function in DRAWS and "generator" not in given,
            "np.random": function not in ("default_rng", "Philox", "Generator") or not (call.args or given),
            "random": function != "Random" or not call.args,
            "secrets": True,
        }
        if wrong.get(module) and file != FIXED:
            unseeded.append((file, line, name))
    assert not unseeded


def test_no_limit_is_shorter_than_the_patience_of_the_tests() -> None:
    """A limit is there for what would never end, not for a busy machine."""
    short = []
    for file, line, name, call in calls():
        least = 1.5 * PATIENCE if name == "pytest.mark.timeout" else PATIENCE
        place = LIMITED.get(name.rpartition(".")[2], len(call.args))
        values = [word.value for word in call.keywords if word.arg == "timeout"] + call.args[place : place + 1]
        # A thread, or a pool of them, is told the function and its limit.
        values += [then for one, then in pairwise(call.args) if isinstance(one, ast.Attribute) and one.attr in LIMITED]
        for value in values:
            seconds = value.value if isinstance(value, ast.Constant) else None
            if "." in name and isinstance(seconds, int | float) and REACHED < seconds < least:
                short.append((file, line, name))
    assert not short


def test_the_suite_waits_longer_than_its_tests() -> None:
    settings = (Path(ROOT) / "pyproject.toml").read_text()
    assert f"\ntimeout = {PATIENCE * 1.5:g}\n" in settings
