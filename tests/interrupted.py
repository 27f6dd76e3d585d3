"""The command `robust` in a process that sends itself a signal at a moment that a test names.

A test that watches a file and then kills its writer depends on luck: on a busy machine the writer may be done before
the signal comes. Here the moment is a place in the program, the same on every machine.
"""

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["Moment", "interrupted"]


@dataclass(frozen=True)
class Moment:
    """When the signal comes: after the `call`-th call of `function` (`module:Class.method`), and `then` calls of any
    other Python functions later, in the midst of whatever the process does.

    With `rank` only in the process with this RANK; with `once`, a file to make, in the first process that gets there.
    """

    function: str
    call: int
    then: int = 0
    number: int = signal.SIGKILL
    rank: str | None = None
    once: str | None = None


def interrupted(moment: Moment, *words: str) -> list[str]:
    """The command, for `subprocess`, that runs `robust WORDS...` up to this moment."""
    return [sys.executable, __file__, json.dumps(asdict(moment)), *words]


def _arm(moment: Moment) -> None:
    module, _, name = moment.function.partition(":")
    *owners, last = name.split(".")
    owner: Any = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    original: Callable[..., Any] = getattr(owner, last)
    calls = 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        result = original(*arguments, **options)
        calls += 1
        if calls == moment.call:
            _later(moment)
        return result

    setattr(owner, last, counted)


def _later(moment: Moment) -> None:
    """Send the signal `then` calls of Python functions later."""
    left = moment.then

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        left -= event == "call"
        if left < 0:
            sys.setprofile(None)
            _send(moment)

    if left:
        sys.setprofile(count)
    else:
        _send(moment)


def _send(moment: Moment) -> None:
    if moment.once is not None:
        try:
            Path(moment.once).touch(exist_ok=False)
        except FileExistsError:
            return
    os.kill(os.getpid(), moment.number)


if __name__ == "__main__":
    given = Moment(**json.loads(sys.argv[1]))
    sys.argv = [str(Path(sys.executable).with_name("robust")), *sys.argv[2:]]
    if given.rank in (None, os.environ.get("RANK")):
        _arm(given)
    from robustinfer.cli.main import main

    main()
