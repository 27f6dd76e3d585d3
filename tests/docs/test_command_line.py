"""docs/command-line.md against what `robust COMMAND --help` prints: the same options, words and defaults."""

import re

import pytest

from .conftest import ROOT, robust

PAGE = (ROOT / "docs" / "command-line.md").read_text()
SECTIONS = dict(re.findall(r"^### robust (\w+)\n(.*?)(?=^###? |^<!-- )", PAGE, re.MULTILINE | re.DOTALL))


def test_every_command_has_a_section(tmp_path_factory: pytest.TempPathFactory) -> None:
    printed = robust("--help", cwd=tmp_path_factory.mktemp("help")).out
    assert re.findall(r"^│ (\w+) ", printed.partition("Commands")[2], re.MULTILINE) == list(SECTIONS)


@pytest.mark.parametrize("command", SECTIONS)
def test_the_page_has_the_options_of_help(
    command: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")  # so that every option stands on one line
    helped = robust(command, "--help", cwd=tmp_path_factory.mktemp("help")).out
    assert options_of_page(SECTIONS[command]) == options_of_help(helped)
    typed = re.search(r"<bool>|<list|range>|^ Usage: .*[{}]", helped, re.MULTILINE)
    assert typed is None, "a flag takes no value, and an argument is named as in the shell"


Option = tuple[str, str, str]
"""Words, variable of the environment, default."""


def options_of_page(section: str) -> dict[str, Option]:
    """The options of a section by their names."""
    found = {}
    for names, text in re.findall(r"^\| (`-.*?`)[^`|]* \| (.*) \|$", section, re.MULTILINE):
        words, _, variable = text.replace("\\|", "|").partition(" Environment: ")
        words, _, default = words.partition(" Default: ")
        name = " ".join(sorted(re.findall(r"`(.*?)`", names)))
        found[name] = (words, variable.strip("`."), default.removesuffix(".").strip("`"))
    return found


def options_of_help(text: str) -> dict[str, Option]:
    """The same from the lines of a help text: names, type, words, `[env var: ...]` and `[default: ...]`."""
    found = {}
    for line in re.findall(r"^│ +\*? *(-.*?) *│$", text, re.MULTILINE):
        columns = re.split(r"\s{2,}", line)
        names = [name for column in columns for name in column.split(",") if name.startswith("-")]
        if "--help" in names:
            continue
        marks = dict(re.findall(r"\[(env var|default): (.*?)\](?= \[|$)", columns[-1]))
        words = re.sub(r"( \[(env var: .*?|default: .*?|required)\])+$", "", columns[-1])
        words, _, said = words.partition(" Default: ")
        default = said.removesuffix(".") or marks.get("default", "").removeprefix("(").removesuffix(")")
        # A switch that is on is shown by its name with the dashes on the page and without them in the help.
        found[" ".join(sorted(names))] = (
            words,
            marks.get("env var", ""),
            f"--{default}" if len(names) > 1 and f"--{default}" in names else default,
        )
    return found


def test_a_default_of_one_is_not_taken_for_a_switch_that_is_on() -> None:
    assert options_of_page(SECTIONS["quickstart"])["--threads"][-1] == "1"
