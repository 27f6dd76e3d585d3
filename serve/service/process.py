"""Owning the processes of a server: each child is a process group of its own, which ends with us."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from robustinfer.errors import ServeError

from ..service import logs

__all__ = ["OwnedProcess"]

# prctl(PR_SET_PDEATHSIG, SIGTERM); see that the parent did not die before the kernel was told; then become the command.
_STEP = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class OwnedProcess:
    """A child with a process group of its own. Whatever happens to this process, the group does not outlive it long."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], folder: Path, descriptors: Sequence[int] = ()
    ) -> None:
        try:
            self._child = subprocess.Popen(
                _ending_with_us(command),
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                # Logs go to our stderr as they are. What is printed besides is no JSON: it is wrapped.
                stdout=subprocess.PIPE,
                start_new_session=True,
                pass_fds=tuple(descriptors),
            )
        except OSError as error:
            raise ServeError(f"{command[0]} could not be started: {error}.") from error
        threading.Thread(target=self._wrap_output, name="robust-serve-output", daemon=True).start()

    def _wrap_output(self) -> None:
        assert self._child.stdout is not None
        with self._child.stdout as output:
            for line in output:
                if text := line.decode(errors="replace").strip():
                    logs.announce("printed", message=text)

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
        """End the group: ask the child, and after `patience` seconds, or when it is gone, kill the rest."""
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


def _ending_with_us(command: Sequence[str]) -> list[str]:
    """On Linux: the command, run by a step that first asks the kernel to end it when we die, even by kill -9.

    A function called between fork and exec could do the same, but is not safe once an engine has started threads here.
    """
    if not sys.platform.startswith("linux"):
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _STEP, str(os.getpid()), *command]
