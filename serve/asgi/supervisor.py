"""The supervisor of the workers: who dies is replaced, and who dies again and again is given up, with a reason."""

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from prometheus_client.multiprocess import mark_process_dead

from robustinfer.errors import ServeError

from ..service import logs
from ..service.process import OwnedProcess
from ..service.state import State
from .metrics import DIRECTORY
from .worker import CANNOT_START

__all__ = ["Supervisor"]

_DEATHS = 5  # so many in a row are too many, ...
_SHORT_LIFE = 60.0  # ... of workers that were well for less than so many seconds


class Supervisor:
    """Keeps one worker alive. What arrives while there is none waits in the socket, which belongs to the launcher."""

    def __init__(
        self, number: int, *, descriptor: int, folder: Path, environment: Mapping[str, str], state: State
    ) -> None:
        self._number = number
        self._descriptor = descriptor
        self._folder = folder
        self._environment = dict(environment)
        self._state = state
        self._short_lives = 0
        self._began = 0.0
        self._process = self._start()

    @property
    def pid(self) -> int:
        """The process id of the worker of today."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether there is no worker now."""
        return self._process.exit_code() is not None

    def is_ready(self, patience: float) -> bool:
        """Whether the worker is there and well."""
        return not self.has_ended and self._state.seconds_since_well(self.pid) < patience

    def look(self, patience: float, startup: float) -> None:
        """Replace the worker if it is dead, or hangs; give up if its predecessors did not live long either.

        It hangs if it was well and then not for `patience` seconds, or never within `startup` seconds.
        """
        code = self._process.exit_code()
        age, life = self._state.seconds_since_well(self.pid), time.monotonic() - self._began
        was_well = age < float("inf")
        if code is None and (age < patience if was_well else life < startup):
            return
        hung = f"made no progress for {age:.0f} s" if was_well else f"was not ready after {life:.0f} s"
        reason = _reason(code) if code is not None else hung
        self._process.stop(patience=0.0)
        # Its counts stay, its gauges do not.
        mark_process_dead(self.pid, self._environment[DIRECTORY])  # type: ignore[no-untyped-call]
        logs.announce("worker lost", worker=self._number, pid=self.pid, reason=reason)
        if code == CANNOT_START:
            raise ServeError("A worker cannot start; the lines above say why.")
        self._short_lives = self._short_lives + 1 if not was_well or life - age < _SHORT_LIFE else 0
        if self._short_lives == _DEATHS:
            raise ServeError(
                f"A worker died {_DEATHS} times in a row, each time within {_SHORT_LIFE:.0f} s of its start; "
                f"at last it {reason}: giving up."
            )
        self._process = self._start()

    def stop(self) -> None:
        """End the worker."""
        self._process.stop(patience=2.0)

    def _start(self) -> OwnedProcess:
        self._began = time.monotonic()
        command = [
            sys.executable,
            "-m",
            "robust.serve.asgi.worker",
            str(self._folder),
            str(self._number),
            str(self._descriptor),
        ]
        return OwnedProcess(command, environment=self._environment, folder=self._folder, descriptors=[self._descriptor])


def _reason(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in list(signal.Signals) else str(-code)
    hint = " (the system may be out of memory)" if -code == signal.SIGKILL and os.name == "posix" else ""
    return f"was killed by {name}{hint}"
