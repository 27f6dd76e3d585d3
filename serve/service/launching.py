"""What the launchers of both engines have in common: a server as a context manager that a signal can end."""

import contextlib
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from robustinfer.errors import ServeError
from robustinfer.files import write_text

from . import health, logs
from .addresses import choose_addresses, require_free
from .devices import allot
from .folders import PrivateFolder
from .health_port import HealthPort
from .options import ServedModel, ServeOptions
from .secrets import read_token, signing_key
from .state import State

__all__ = ["BaseLauncher"]


class BaseLauncher(ABC):
    """A running server. Use it as a context manager: leaving it ends all processes and removes all files.

    with Launcher(models, options) as server:
        server.wait_ready()
        server.wait()
        server.drain()
    """

    engine: str
    """Its name, for people."""

    def __init__(self, models: Sequence[ServedModel], options: ServeOptions) -> None:
        self.models = tuple(models)
        self.options = options
        paths = [model.path for model in self.models]
        self.allotment = allot(options.device, models=paths, workers=options.workers, threads=options.threads)
        self.limits = options.limits(self.models)
        self.token, self.token_is_ours = read_token(options)
        self.key = signing_key(options)
        self.addresses = choose_addresses(options)
        self._folder: PrivateFolder | None = None
        self._health: HealthPort | None = None
        self._wanted_end = threading.Event()
        self._wanted_reload = threading.Event()

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    @abstractmethod
    def pid(self) -> int:
        """The process whose group holds the processes of the server."""

    @abstractmethod
    def wait_ready(self) -> None:
        """Return when every model has answered a real prediction."""

    @abstractmethod
    def drain(self) -> int:
        """Answer what has arrived, refuse what comes; the number of accepted requests that were cut off."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What `robust serve --check` says about this engine besides the options."""

    def remarks(self) -> list[str]:
        """What the operator should know about the server that has just started."""
        return []

    @property
    def drain_seconds(self) -> float:
        """How long a drain may take: by default as long as the accepted work may take at the most."""
        if self.options.drain_timeout is not None:
            return self.options.drain_timeout
        return max(30.0, self._longest_queue() * max(self.limits.max_seconds, self.limits.max_deadline))

    def end(self) -> None:
        """Ask the server to end; `wait` returns soon after. Safe to call in a signal handler."""
        self._wanted_end.set()

    def wait(self) -> None:
        """Return when the end is asked for; raise `ServeError` if the server dies by itself, or half of it does."""
        while not self._wanted_end.wait(0.2):
            self._check_alive()
            if self._wanted_reload.is_set():
                self._wanted_reload.clear()
                self._reload_token()

    def close(self) -> None:
        """End all processes of the server and remove its files."""
        if self._health is not None:
            self._health.close()
            self._health = None
        self._stop()
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """While inside: SIGTERM and SIGINT ask for the end, instead of killing this process.

        SIGHUP reads the token file again; without one it means that the terminal is gone, and asks for the end as well.
        """
        again = self._wanted_reload.set if self.options.token_file is not None else self.end
        wanted = {signal.SIGTERM: self.end, signal.SIGINT: self.end, signal.SIGHUP: again}
        before = {number: signal.signal(number, lambda *_, act=act: act()) for number, act in wanted.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _begin(self) -> None:
        self._folder = PrivateFolder()
        folder = self._folder.path
        self._check_folder(folder)
        require_free(self.addresses.host, self.addresses.port)
        for port in (self.addresses.metrics_port, self.addresses.health_port):
            require_free(self.addresses.metrics_host, port)
        self._state = State.create(folder / "state", token=self.token, key=self.key)
        write_text(folder / health.HEALTH_FILE, self.addresses.health_url)
        self._health = HealthPort(
            self.addresses.metrics_host, self.addresses.health_port, live=self._is_live, ready=self._is_ready
        )
        self._start(folder)

    def _check_folder(self, folder: Path) -> None:
        """Refuse a temporary folder in which the engine would fail with a message that does not say so."""
        if len(str(folder).encode()) > _LONGEST_FOLDER:
            raise ServeError(
                f"The temporary folder {folder} has too long a name for sockets: set TMPDIR to a shorter one."
            )

    @abstractmethod
    def _start(self, folder: Path) -> None:
        """Start the processes, whose files are in `folder`."""

    @abstractmethod
    def _stop(self) -> None:
        """End the processes that were started, if any."""

    @abstractmethod
    def _longest_queue(self) -> int:
        """How many requests, at the most, are answered one after the other."""

    @abstractmethod
    def _check_alive(self) -> None:
        """Raise ServeError if the server is beyond hope."""

    @abstractmethod
    def _is_live(self) -> bool:
        """Whether the server may recover by itself."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether every model makes predictions, and new requests are welcome."""

    def _reload_token(self) -> None:
        try:
            self.token, _ = read_token(self.options)
        except ServeError as error:
            logs.announce("token not changed", reason=str(error))
            return
        if self.token is not None:
            self._state.change_token(self.token)
        logs.announce("token read again")


_LONGEST_FOLDER = 80  # a Unix socket's path has at most 107 bytes on Linux, 103 on macOS
