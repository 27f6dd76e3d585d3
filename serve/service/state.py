"""The private folder a launcher and its workers share: the digest of the token, and the marks of a drain.

    token.sha256    digest of the bearer token; no file, no authorisation
    draining        no longer ready; what has arrived is still answered
    stopping        nothing is answered any more
    busy-PID        a worker is at work

The launcher names the folder to its workers in the environment. An archive that runs in somebody's own TorchServe has
no such folder: then nobody is asked for a token, and nothing drains.
"""

import hashlib
import hmac
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from robustinfer.files import write_text

__all__ = ["ENVIRONMENT", "State", "is_alive", "token_digest"]

ENVIRONMENT = "ROBUST_SERVE_STATE"


def token_digest(token: str) -> str:
    """The digest by which a token is known to the workers; the token itself is on no disk."""
    return hashlib.sha256(token.encode()).hexdigest()


class State:
    """The shared folder, or nothing (`folder` None)."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        token = folder / "token.sha256" if folder else None
        self._digest = token.read_text().strip() if token and token.is_file() else None

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> "State":
        """The folder the launcher named."""
        name = environment.get(ENVIRONMENT)
        return cls(Path(name) if name else None)

    @classmethod
    def create(cls, folder: Path, *, token: str | None) -> "State":
        """Make the folder, readable by its owner alone."""
        folder.mkdir(mode=0o700)
        if token is not None:
            write_text(folder / "token.sha256", token_digest(token))
        return cls(folder)

    def permits(self, authorization: str | None) -> bool:
        """Whether a request with this Authorization header may pass. Takes the same time for every wrong token."""
        if self._digest is None:
            return True
        scheme, _, token = (authorization or "").partition(" ")
        given = token_digest(token.strip())
        return hmac.compare_digest(given, self._digest) and scheme.lower() == "bearer"

    def mark(self, name: str) -> None:
        """Set the mark `draining` or `stopping`."""
        if self._folder:
            (self._folder / name).touch()

    def marked(self, name: str) -> bool:
        """Whether a mark is set."""
        return self._folder is not None and (self._folder / name).exists()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Show that this process is at work."""
        if self._folder is None:
            yield
            return
        mark = self._folder / f"busy-{os.getpid()}"
        mark.touch()
        try:
            yield
        finally:
            mark.unlink(missing_ok=True)

    def busy_workers(self) -> list[int]:
        """The processes at work."""
        if self._folder is None:
            return []
        pids = [int(mark.name.partition("-")[2]) for mark in self._folder.glob("busy-*")]
        return [pid for pid in pids if is_alive(pid)]


def is_alive(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
