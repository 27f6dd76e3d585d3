"""Every example of every page: fenced and indented blocks, and whole command lines in running text."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .conftest import ROOT

__all__ = ["LANGUAGES", "PAGES", "PROGRAMS", "Example", "complete", "examples", "read"]

# The changelog has no examples, and RESULTS.md is rendered from the scripts of the benchmarks.
_LEFT_OUT = {"CHANGELOG.md", "benchmarks/RESULTS.md"}
_FOLDERS = (".", "docs", "examples", "examples/signs", "benchmarks", "serve/deploy")
PAGES = sorted(
    path for folder in _FOLDERS for path in (ROOT / folder).glob("*.md") if str(path.relative_to(ROOT)) not in _LEFT_OUT
)
PROGRAMS = {
    "robust",
    "torchrun",
    "curl",
    "python",
    "pip",
    "make",
    "docker",
    "uvicorn",
    "tritonserver",
    "pre-commit",
    "source",
}
LANGUAGES = {"console", "python", "toml", "yaml", "json", "promql", "text"}


@dataclass(frozen=True)
class Example:
    """A command, a program or a file that a page shows, with what it shows as printed."""

    page: str
    line: int
    kind: str
    text: str
    printed: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def examples(page: Path, text: str | None = None) -> list[Example]:
    """All examples of a page, in the order of the page; a command line in running text counts once."""
    name = str(page.relative_to(ROOT))
    found: list[Example] = []
    for line, language, block in _blocks(page.read_text() if text is None else text):
        if language is None:
            for example in _inline(name, line, block):
                if example.text not in {other.text for other in found}:
                    found.append(example)
        elif language in ("console", "indented"):
            found.extend(_commands(name, line, block, console=language == "console"))
        else:
            found.append(Example(name, line, language, block))
    return found


def read(page: str) -> str:
    """The text of a page."""
    return (ROOT / page).read_text()


def _blocks(text: str) -> Iterator[tuple[int, str | None, str]]:
    """Line number, language (None: running text) and content of each part of a page."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        start, fence = number, re.fullmatch(r"```(\w*)", lines[number])
        if fence:
            number = lines.index("```", number + 1) + 1
            yield start + 2, fence[1], "\n".join(lines[start + 1 : number - 1])
        elif _indented(lines, number):
            while number < len(lines) and (lines[number].startswith("    ") or not lines[number].strip()):
                number += 1
            yield start + 1, "indented", "\n".join(line[4:] for line in lines[start:number]).rstrip()
        else:
            while number < len(lines) and not lines[number].startswith("```") and not _indented(lines, number):
                number += 1
            yield start + 1, None, "\n".join(lines[start:number])


def _indented(lines: list[str], number: int) -> bool:
    return lines[number].startswith("    ") and (number == 0 or not lines[number - 1].strip())


def _commands(page: str, line: int, block: str, *, console: bool) -> Iterator[Example]:
    """The commands of a block: after `$ ` with what they print below them, or one a line."""
    start = r"^\$ " if console else r"^(?=\S)"
    for match in re.finditer(rf"{start}(?:.*\\\n)*.*\n?", block, re.MULTILINE):
        following = re.split(start, block[match.end() :], maxsplit=1, flags=re.MULTILINE)[0]
        command = re.sub(r"\s*\\\n\s*", " ", match[0]).removeprefix("$ ")
        text = re.sub(r"\s{2,}#.*$", "", command).strip()
        # A block that is no command says in its fence what it is.
        kind = "command" if _program(text) in PROGRAMS else "unknown"
        yield Example(page, line + block[: match.start()].count("\n"), kind, text, following.strip("\n"))


def _inline(page: str, line: int, prose: str) -> Iterator[Example]:
    """Code in running text that starts with a program and says more than its name."""
    for match in re.finditer(r"`([^`]+)`", prose):
        text = " ".join(match[1].split())
        at = line + prose[: match.start()].count("\n")
        if _program(text) in PROGRAMS and " " in text:
            yield Example(page, at, "command" if complete(text) else "mention", text)


def _program(text: str) -> str:
    """The program of a command line, after `cd FOLDER &&` and variables."""
    plain = re.sub(r"^(cd \S+ && )?(\w+=\S+ )*", "", text)
    return plain.split(" ")[0].rpartition("/")[2] if plain else ""


def complete(text: str) -> bool:
    """Whether code in running text is a command to give; `robust train --resume` only speaks of an option."""
    words = shlex.split(text)
    if words[0] in ("make", "curl"):
        return len(words) > 2
    if words[0] != "robust" or words[1] == "--help":
        return True
    return len(words) > 2 and (len(words) > 4 or not words[2].startswith("-"))
