"""Commands in this process: what `robust WORDS...` prints, and its exit code."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from robustinfer.cli.main import main

__all__ = ["Printed", "Robust", "runner"]


class Printed(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


Robust = Callable[..., Printed]
"""Runs `robust WORDS...`; words may be anything that `str` understands."""


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Robust:
    """A function that runs commands as a shell would, with wide lines and without colours."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*words: object) -> Printed:
        monkeypatch.setattr(sys, "argv", ["robust", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Printed(int(ended.value.code or 0), printed.out, printed.err)

    return run
