"""Every example of every page is run, or stands in the table of those that cannot be."""

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from robustinfer.cli.main import app

from .conftest import ROOT, Quickstart
from .pages import LANGUAGES, PAGES, PROGRAMS, Example, examples
from .running import Runner, run_all
from .smaller import smaller_command
from .unrunnable import TABLE

TUTORIAL = ROOT / "docs" / "tutorial.md"  # starts servers of its own models (test_tutorial.py)
SERVED = [page for page in PAGES if page != TUTORIAL and "http://127.0.0.1:8080" in page.read_text()]
ALONE = [page for page in PAGES if page not in (TUTORIAL, *SERVED) and examples(page)]
# Processes that import torch, compile, or serve: continuous integration runs their neighbours, and those of examples/
# with their answers looked at (test_examples.py).
SLOW = (
    "torchrun --standalone --nproc-per-node 2 -m robustinfer train ",
    "robust train cifar10-linf --data DIR --probe",
    "cd examples/own_architecture && python train_own.py ",
    "python examples/attack_with_foolbox.py ",
    "robust demo examples/signs/signs.onnx",
)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def is_slow(example: Example) -> bool:
    return example.text.startswith(SLOW)


# Four processes of one command, which tests/robustinfer/test_shards.py starts as well.
LONG = ("scaling-out.md",)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (page.name in LONG)) for page in ALONE], ids=name_of
)
def test_examples_run(page: Path, quickstart: Quickstart, tmp_path: Path) -> None:
    run_all([example for example in examples(page) if not is_slow(example)], Runner(tmp_path, quickstart, None))


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in ALONE if any(map(is_slow, examples(page)))], ids=name_of)
def test_slow_examples_run_in_their_places(page: Path, quickstart: Quickstart, tmp_path: Path) -> None:
    run_all(examples(page), Runner(tmp_path, quickstart, None))


def every_example() -> list[Example]:
    return [example for page in PAGES for example in examples(page)]


def test_every_block_says_what_it_is() -> None:
    """An indented block holds commands; anything else is fenced, with a language that is known how to be run."""
    kinds = {"command", "mention", *LANGUAGES} - {"console"}
    assert [str(example) for example in every_example() if example.kind not in kinds] == []
    fences = {line for page in PAGES for line in page.read_text().splitlines() if "```" in line}
    assert fences == {"```", *(f"```{language}" for language in LANGUAGES)}, "a block that is not collected"


def test_the_tables_speak_of_examples_that_are_there() -> None:
    texts = [example.text for example in every_example()]
    for start in (*TABLE, *SLOW):
        assert any(text.startswith(start) for text in texts), start


def test_every_page_and_every_kind_is_collected() -> None:
    found = every_example()
    assert {example.kind for example in found} == {"command", "mention", *LANGUAGES} - {"console"}
    assert {name_of(page) for page in PAGES} >= {example.page for example in found}
    assert len(PAGES) >= 16
    programs = {shlex.split(example.text)[0] for example in found if example.kind == "command"}
    assert programs >= PROGRAMS - {"uvicorn", "pre-commit"}


SAMPLE = """
Say `robust train --resume` or `make test`, give `robust inspect a.onnx`.

    robust train x \\
      --out y        # a comment
    make docs

```console
$ robust export y
robust: no
```

```python
print(1)
```

    this is no command
"""


def test_the_collector_sees_blocks_continued_lines_output_and_running_text(tmp_path: Path) -> None:
    page = ROOT / "docs" / "sample.md"
    found = examples(page, SAMPLE)
    assert [(example.line, example.kind, example.text, example.printed) for example in found] == [
        (2, "mention", "robust train --resume", ""),
        (2, "mention", "make test", ""),
        (2, "command", "robust inspect a.onnx", ""),
        (4, "command", "robust train x --out y", ""),
        (6, "command", "make docs", ""),
        (9, "command", "robust export y", "robust: no"),
        (14, "python", "print(1)", ""),
        (17, "unknown", "this is no command", ""),
    ]


@pytest.mark.parametrize("text", ["docker compose up", "python benchmarks/none.py", "no-such-program now"])
def test_an_example_that_cannot_run_is_not_passed_over(text: str, quickstart: Quickstart, tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    with pytest.raises((AssertionError, OSError)):
        run_all([Example("README.md", 1, "command", text)], Runner(tmp_path / "page", quickstart, None))


def parameters(command: Any) -> set[str]:
    """The option names of a command."""
    names = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return names | {"-h", "--help"}


def test_mentioned_commands_options_and_targets_exist() -> None:
    group: Any = typer.main.get_command(app)
    for example in every_example():
        words = shlex.split(smaller_command(example.text)) if example.kind == "mention" else []
        if words[:1] == ["robust"]:
            assert words[1] in group.commands, example
            options = {word.partition("=")[0] for word in words[2:] if word.startswith("--")}
            assert options <= parameters(group.commands[words[1]]), example
        elif words[:1] == ["make"]:
            dry = subprocess.run(["make", "-n", words[1]], cwd=ROOT, capture_output=True, text=True, timeout=250)
            assert dry.returncode == 0, example
