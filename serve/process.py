"""Owning TorchServe's processes: the virtual machine and its workers are one process group, which ends with us."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from robustinfer.errors import ServeError

__all__ = ["OwnedProcess"]

_PR_SET_PDEATHSIG = 1


class OwnedProcess:
    """A child with a process group of its own. Whatever happens to this process, the group does not outlive it long."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], folder: Path) -> None:
        try:
            self._child = subprocess.Popen(
                list(command),
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                # Answers go to stdout of `robust serve`, logs to its stderr; TorchServe only has logs.
                stdout=2,
                start_new_session=True,
                preexec_fn=_end_with_parent(),  # safe: the launcher has no other threads
            )
        except OSError as error:
            raise ServeError(f"TorchServe could not be started: {error}.") from error

    @property
    def pid(self) -> int:
        """The process id, which is also that of the group."""
        return self._child.pid

    def exit_code(self) -> int | None:
        """The exit code, or None while the process runs."""
        return self._child.poll()

    def members(self) -> bool:
        """Whether any process of the group is left."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # macOS says so for a group of zombies
            return False
        return True

    def stop(self, *, patience: float) -> None:
        """End the group: ask the virtual machine, and after `patience` seconds, or when it is gone, kill the rest."""
        if self.exit_code() is None:
            self._child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(patience)
        deadline = time.monotonic() + 10
        # TorchServe restarts workers even while it ends, so one round of signals is not always enough.
        while self.members() and time.monotonic() < deadline:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._child.poll()
            time.sleep(0.02)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(5)


def _end_with_parent() -> Callable[[], None] | None:
    """On Linux: a function that asks the kernel to end the child when its parent dies, even by kill -9."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def prepare() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent died before the kernel was told
            os._exit(1)

    return prepare
