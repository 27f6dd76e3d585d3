"""The private folder a launcher and its workers share: who may ask, the marks of a drain, and signs of life.

    auth            "token" or "none": whether clients need a token
    sign.key        the private key that signs certificates, without its passphrase, of mode 0600
    token.sha256    digest of the bearer token; where `auth` says token and this is missing, nobody is let in
    draining        no longer ready; what has arrived is still answered
    stopping        nothing is answered any more
    busy-PID        a worker is at work; the file holds the number of requests in its hands
    alive-NAME      when a worker of the model NAME last made a prediction
    well-PID        when a worker last found itself well

The launcher names the folder to its workers in the environment. An archive that runs in somebody's own TorchServe has
no such folder: then nobody is asked for a token, and nothing drains.
"""

import hashlib
import hmac
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from robustinfer.files import write_text
from robustinfer.signing import PrivateKey

__all__ = ["ENVIRONMENT", "State", "is_alive", "token_digest"]

ENVIRONMENT = "ROBUST_SERVE_STATE"
_KEY = "sign.key"


def token_digest(token: str) -> str:
    """The digest by which a token is known to the workers; the token itself is on no disk."""
    return hashlib.sha256(token.encode()).hexdigest()


class State:
    """The shared folder, or nothing (`folder` None).

    Looks at a file at most once in `every` seconds: what somebody else changes there counts after that time at the
    latest.
    """

    def __init__(self, folder: Path | None, *, every: float = 0.0) -> None:
        self._folder = folder
        self._every = every
        self._texts: dict[str, tuple[float, str | None]] = {}
        self._succeeded: dict[str, float] = {}
        self._shown = 0

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> "State":
        """The folder the launcher named."""
        name = environment.get(ENVIRONMENT)
        return cls(Path(name) if name else None)

    @classmethod
    def create(cls, folder: Path, *, token: str | None, key: PrivateKey | None = None) -> "State":
        """Make the folder, readable by its owner alone."""
        folder.mkdir(mode=0o700)
        write_text(folder / "auth", "none" if token is None else "token")
        state = cls(folder)
        if token is not None:
            state.change_token(token)
        if key is not None:
            key.write(folder / _KEY)
        return state

    def signing_key(self) -> PrivateKey:
        """The key that signs certificates; SignatureError if it is not there: then nothing may be answered."""
        return PrivateKey.load((self._folder or Path()) / _KEY)

    def change_token(self, token: str) -> None:
        """From now on this token is asked for; workers look it up."""
        if self._folder is not None:
            write_text(self._folder / "token.sha256", token_digest(token))
            self._texts.pop("token.sha256", None)

    def permits(self, authorization: str | None) -> bool:
        """Whether a request with this Authorization header may pass. Takes the same time for every wrong token."""
        if self._folder is None or self._read("auth") == "none":
            return True
        wanted = self._read("token.sha256")
        scheme, _, token = (authorization or "").partition(" ")
        given = token_digest(token.strip())
        # A folder that lost its files lets nobody in: a missing digest equals no digest.
        return hmac.compare_digest(given, wanted) and scheme.lower() == "bearer"

    def _read(self, name: str) -> str:
        """What a file holds; an empty text if it is missing."""
        return self._text(name) or ""

    def _text(self, name: str) -> str | None:
        assert self._folder is not None
        now = time.monotonic()
        read_at, text = self._texts.get(name, (-math.inf, None))
        if now - read_at >= self._every:
            try:
                text = (self._folder / name).read_text().strip()
            except OSError:
                text = None
            if self._every:
                self._texts[name] = now, text
        return text

    def mark(self, name: str) -> None:
        """Set the mark `draining` or `stopping`."""
        if self._folder:
            (self._folder / name).touch()
            self._texts.pop(name, None)

    def marked(self, name: str) -> bool:
        """Whether a mark is set."""
        return self._folder is not None and self._text(name) is not None

    def succeeded(self, model: str) -> None:
        """Remember that a worker of this model has just made a prediction."""
        now = time.monotonic()
        if now - self._succeeded.get(model, -math.inf) < self._every:
            return
        if self._folder is not None and self._folder.is_dir():
            self._succeeded[model] = now
            (self._folder / f"alive-{model}").touch()

    def seconds_since_success(self, model: str) -> float:
        """How long ago a worker of this model made its last prediction; infinity if none ever did."""
        return self._age(f"alive-{model}")

    def _age(self, name: str) -> float:
        try:
            return max(0.0, time.time() - (self._folder or Path()).joinpath(name).stat().st_mtime)
        except OSError:
            return float("inf")

    @contextmanager
    def busy(self, requests: int = 1) -> Iterator[None]:
        """Show how many requests this process is working on."""
        if self._folder is None or not self._folder.is_dir():
            yield
            return
        mark = self._folder / f"busy-{os.getpid()}"
        mark.write_text(str(requests))
        try:
            yield
        finally:
            mark.unlink(missing_ok=True)

    def show_busy(self, requests: int) -> None:
        """Show how many requests this process has in hand, if that has changed."""
        if self._folder is None or requests == self._shown:
            return
        self._shown = requests
        mark = self._folder / f"busy-{os.getpid()}"
        if requests:
            mark.write_text(str(requests))  # whoever reads it half written knows at least that this process is busy
        else:
            mark.unlink(missing_ok=True)

    def show_well(self) -> None:
        """Show that this process is well."""
        if self._folder is not None:
            (self._folder / f"well-{os.getpid()}").touch()

    def seconds_since_well(self, pid: int) -> float:
        """How long ago a worker was well; infinity before the first time."""
        return self._age(f"well-{pid}")

    def busy_workers(self) -> dict[int, int]:
        """The processes at work, each with the number of requests in its hands."""
        if self._folder is None:
            return {}
        marks = {int(mark.name.partition("-")[2]): self._read(mark.name) for mark in self._folder.glob("busy-*")}
        return {pid: int(text) if text.isdigit() else 1 for pid, text in marks.items() if is_alive(pid)}


def is_alive(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
