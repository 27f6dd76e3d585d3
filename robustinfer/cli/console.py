"""What all commands share: data goes to stdout, everything else to stderr; errors are sentences."""

import json
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["duration", "existing", "interruptible", "note", "print_json", "print_text", "program", "progress", "stderr"]

stderr = Console(stderr=True, highlight=False, soft_wrap=True)
"""Progress, logs and errors. Colours and bars only where a person looks at a terminal."""


def print_text(text: str = "") -> None:
    """Print data to stdout."""
    sys.stdout.write(text + "\n")


def print_json(document: Any) -> None:
    """Print one JSON object on one line to stdout."""
    print_text(json.dumps(document, ensure_ascii=False))


def note(text: str) -> None:
    """Say something to the person at the terminal."""
    stderr.print(text, markup=False)


def duration(seconds: float) -> str:
    """A time as people say it: 40 s, 12 min, 3.5 h, 11 days."""
    for unit, length, limit in (("s", 1, 90), ("min", 60, 90), ("h", 3600, 48)):
        if seconds < limit * length:
            digits = 1 if unit == "h" or (unit == "s" and seconds < 10) else 0
            return f"{seconds / length:.{digits}f} {unit}"
    return f"{seconds / 86400:.0f} days"


def program() -> str:
    """How to call `robust` from this shell: by its name if the shell finds this very program, else by its path."""
    own = Path(sys.argv[0])
    if own.name != "robust" or not own.is_file():
        own = Path(sys.executable).with_name("robust")
    if not own.is_file():
        return f"{shlex.quote(sys.executable)} -m robustinfer"
    found = shutil.which("robust")
    if found and Path(found).samefile(own):
        return "robust"
    here = Path.cwd()
    return shlex.quote(str(own.relative_to(here) if own.is_relative_to(here) else own))


@contextmanager
def progress(description: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """A progress bar on stderr, with an estimate of the time left; yields a function that advances it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task(description, total=total)
        yield lambda steps: bar.advance(task, steps)


def existing(paths: Iterable[Path]) -> list[Path]:
    """The paths, or a sentence about the first that is not there."""
    from ..errors import ArgumentError

    found = list(paths)
    for path in found:
        if not path.exists():
            raise ArgumentError(f"There is no file {path}.")
    return found


@contextmanager
def interruptible(*signals: signal.Signals, worthwhile: Callable[[], bool] = lambda: True) -> Iterator[threading.Event]:
    """The first ctrl-C sets the event, so that work ends with what it has; the second one ends the program.

    `signals` are those that count as ctrl-C, SIGINT alone by default. While it is not `worthwhile`, because there is
    nothing to keep yet, the first one ends the program, too.
    """
    stop = threading.Event()

    def first(*_: Any) -> None:
        restore()
        if not worthwhile():
            raise KeyboardInterrupt
        note("stopping; press ctrl-C again to end at once")
        stop.set()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, first) for number in signals or (signal.SIGINT,)}
    try:
        yield stop
    finally:
        restore()
