"""The examples of README and docs/ are executed; commands, links and names that are only mentioned exist."""

import ast
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from robustinfer.cli.main import app

from .conftest import ROOT, Quickstart, robust, run

pytestmark = pytest.mark.xdist_group("quickstart")

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md", *ROOT.glob("docs/*.md")])
NOT_EXECUTED = "# not executed:"
# The Python of the other pages speaks of models that are not here.
OWN = (ROOT / "README.md", ROOT / "docs" / "python-api.md")


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> Iterator[str]:
    """Every line of a page that is a `robust` command, with continued lines put together."""
    text = re.sub(r"\\\n\s*", " ", page.read_text())
    for line in re.findall(r"^(?: {4,}|\$ )(robust .*)$", text, re.MULTILINE):
        yield line.partition("   #")[0].strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_is_python(page: Path) -> None:
    for block in blocks(page, "python"):
        ast.parse(block)


@pytest.mark.parametrize("page", OWN, ids=lambda page: page.name)
def test_python_examples_run(page: Path, quickstart: Quickstart, tmp_path: Path) -> None:
    program = "\n".join(block for block in blocks(page, "python") if NOT_EXECUTED not in block)
    assert program.count("Predictor.load") >= 1
    (tmp_path / "example.py").write_text(program)
    (tmp_path / "quickstart").symlink_to(quickstart.out)
    finished = run(sys.executable, "-W", "error", "example.py", cwd=tmp_path)
    assert finished.code == 0, finished.err


def parameters(command: Any) -> set[str]:
    """The option names of a command."""
    names = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return names | {"-h", "--help"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_mentioned_commands_and_options_exist(page: Path) -> None:
    group: Any = typer.main.get_command(app)
    for line in commands(page):
        words = shlex.split(line.replace("...", ""), comments=True)
        if len(words) < 2 or words[1].startswith("-") or words[1] == "COMMAND":
            continue
        assert words[1] in group.commands, line
        known = parameters(group.commands[words[1]])
        for word in words[2:]:
            if word.startswith("--"):
                assert word.partition("=")[0] in known, line


def transcript(page: Path) -> Iterator[tuple[list[str], str]]:
    """Commands of console blocks, each with what is printed below it."""
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, printed = part.partition("\n")
            yield shlex.split(line), printed.strip()


def test_error_transcripts_are_what_is_printed(quickstart: Quickstart) -> None:
    shown = [(words, printed) for words, printed in transcript(ROOT / "docs" / "command-line.md") if printed]
    assert len(shown) >= 5
    for words, printed in shown:
        finished = robust(*words[1:], cwd=quickstart.folder)
        assert finished.code in (1, 2)
        assert finished.err.strip() == printed


@pytest.mark.parametrize("name", ["command-line.md", "scaling-out.md"])
def test_command_examples_work(name: str, quickstart: Quickstart) -> None:
    """Those that take a small model and seconds; training and servers have tests of their own."""
    quick = {"inspect", "certify", "summary", "verify", "report", "bench"}
    done = 0
    for words, printed in transcript(ROOT / "docs" / name):
        here = words[0] == "robust" and words[1] in quick and not printed and "cifar.onnx" not in words
        if here:
            finished = robust(*words[1:], cwd=quickstart.folder)
            assert finished.code == 0, (words, finished.err)
            done += 1
    assert done >= 3


def test_the_options_in_the_documentation_are_those_of_the_commands() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import build  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    page = (ROOT / "docs" / "command-line.md").read_text()
    assert build.option_tables() in page, "the options changed: run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            assert anchor in headings(linked), target


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_names_of_the_paper_map_exist() -> None:
    links = re.findall(r"\[`(\w+)`\]\(\.\./([\w/]+\.py)\)", (ROOT / "docs" / "paper-map.md").read_text())
    assert len(links) > 40
    for name, file in links:
        body = ast.parse((ROOT / file).read_text()).body
        named = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert name in named, (name, file)


def test_every_numbered_statement_of_the_paper_is_mapped() -> None:
    text = (ROOT / "docs" / "paper-map.md").read_text()
    for number in range(1, 12):
        assert f"| ({number}) " in text
    for statement in ("Lemma 1", "Lemma 2", "Lemma 3", "Lemma 4", "Lemma 5", "Theorem 1", "Theorem 2", "Theorem 3"):
        assert statement in text
    for number in range(1, 6):
        assert f"| {number}, " in text
    for table in ("Table 1", "Table 2", "Figure 1", "Figure 2", "Algorithm 1"):
        assert table in text
