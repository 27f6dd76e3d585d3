"""A server's private folder below the temporary one: made, locked for as long as its process lives, swept after it."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["PREFIX", "PrivateFolder", "hold", "sweep"]

PREFIX = "robust-serve-"
_LOCK = "lock"


class PrivateFolder:
    """A folder that only its owner can enter. `close` removes it; if we are killed, the next server does."""

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        sweep(parent)
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")).resolve()
        self._lock = hold(self.path)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def sweep(parent: Path) -> None:
    """Remove the folders of servers that were killed with no chance to do so: each may hold a copy of its models."""
    for folder in parent.glob(f"{PREFIX}*-*"):
        lock = folder / _LOCK
        try:
            descriptor = os.open(lock, os.O_RDWR)
        except OSError:  # being made at this moment, or somebody else's
            continue
        try:
            # A process id says nothing where containers share a temporary folder; a lock ends with its process.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def hold(folder: Path) -> int:
    """Lock the folder for as long as this process lives, so that no other server sweeps it away."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor
