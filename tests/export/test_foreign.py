"""The files open in other people's tools: every snippet of the documentation runs where this package is not there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from robust.export import export_run

from .conftest import make_run

PAGE = Path(__file__).parents[2] / "docs" / "model-file.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
_WITHOUT = "import sys\nsys.modules['robustinfer'] = sys.modules['robust'] = None\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files the page speaks of."""
    folder = tmp_path_factory.mktemp("foreign")
    run = make_run(folder / "run")
    for name in ("digits.onnx", "digits.pt", "digits.pt2"):
        export_run(run, folder / name, sampler=not name.endswith(".pt2"), samples=20)
    return folder


def test_the_page_has_a_snippet_for_each_tool() -> None:
    tools = ("onnx.checker", 'session.run(["scores"]', 'session.run(["votes"]', "torch.jit.load", "torch.export.load")
    assert len(SNIPPETS) == len(tools)
    assert all(tool in snippet for tool, snippet in zip(tools, SNIPPETS, strict=True))


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippets_run_without_this_package(folder: Path, number: int) -> None:
    command = [sys.executable, "-W", "ignore", "-c", _WITHOUT + SNIPPETS[number]]
    result = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=folder, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_this_package_is_really_not_there() -> None:
    for name in ("robustinfer", "robust.export"):
        command = [sys.executable, "-c", f"{_WITHOUT}import {name}"]
        assert subprocess.run(command, capture_output=True, timeout=250, check=False).returncode != 0
