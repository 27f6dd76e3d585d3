"""Starting, supervising, draining and stopping the workers of the ASGI server.

This process owns the sockets, the token, the metrics and the health port; the workers do everything else. So a worker
that dies takes its own requests with it and nothing more.
"""

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robustinfer.errors import ServeError
from robustinfer.files import write_text

from ..service import health
from ..service.addresses import family
from ..service.environment import inherited
from ..service.launching import BaseLauncher
from ..service.options import ServedModel, ServeOptions
from ..service.state import ENVIRONMENT
from .metrics import DIRECTORY, MetricsPort
from .supervisor import Supervisor
from .worker import OPTIONS_FILE, WorkerOptions

__all__ = ["AsgiLauncher"]

_BACKLOG = 1024
_SETTLE = 1.0  # seconds for a worker that has nothing in hand to end by itself
_FRESH = 5.0  # seconds since a worker was well, within which it counts as ready


class AsgiLauncher(BaseLauncher):
    """A running ASGI server."""

    engine = "the ASGI server"

    def __init__(self, models: Sequence[ServedModel], options: ServeOptions) -> None:
        super().__init__(models, options)
        self._sockets: list[socket.socket] = []
        self._workers: list[Supervisor] = []
        self._metrics: MetricsPort | None = None
        self._draining = False

    @property
    def pid(self) -> int:
        """The process id of this process, which owns the workers."""
        return os.getpid()

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers of today."""
        return [worker.pid for worker in self._workers]

    def facts(self) -> dict[str, Any]:
        """Nothing besides the options."""
        return {}

    def wait_ready(self) -> None:
        """Return when every worker has made a prediction with every model and answers for it."""
        deadline = time.monotonic() + self.options.startup_timeout
        while not self._all_ready():
            self._check_alive()
            if self._wanted_end.is_set():
                raise ServeError("The server was stopped before it was ready.")
            if time.monotonic() > deadline:
                raise ServeError(
                    f"The server made no prediction within {self.options.startup_timeout:g} s; the lines above may say "
                    "why (startup_timeout in the configuration allows more time)."
                )
            time.sleep(0.02)

    def _all_ready(self) -> bool:
        return all(worker.is_ready(_FRESH) for worker in self._workers) and all(
            health.is_ready(self.addresses.url, model.name) for model in self.models
        )

    def drain(self) -> int:
        """Answer what has arrived, refuse what comes with 503, and return when nothing is in hand (or no time left).

        Returns the number of accepted requests that were not answered in that time.
        """
        deadline = time.monotonic() + self.drain_seconds
        self._draining = True
        self._state.mark("draining")
        self._state.mark("stopping")
        while not all(worker.has_ended for worker in self._workers) and time.monotonic() < deadline:
            time.sleep(0.02)
        return sum(self._state.busy_workers().values())

    def _longest_queue(self) -> int:
        return self.options.waiting * len(self.models)

    def _start(self, folder: Path) -> None:
        counts = folder / "metrics"
        counts.mkdir()
        options = WorkerOptions(
            models=tuple(WorkerOptions.model(model) for model in self.models),
            gpus=self.allotment.gpus,
            threads=self.allotment.threads,
            limits=self.limits.to_json(),
            queue=self.options.waiting,
            connections=self.options.connections,
            read_timeout=self.options.read_timeout,
            watch_timeout=self.options.watch_timeout,
            sign=self.key is not None,
            trusted_proxies=self.options.trusted_proxies,
            page=self.options.page,
        )
        write_text(folder / OPTIONS_FILE, options.dumps())
        traces = [name for name in os.environ if name.startswith("OTEL_")]  # meant for whoever answers requests
        environment = inherited(os.environ, also=[*self.options.environment, *traces]) | {
            ENVIRONMENT: str(folder / "state"),
            DIRECTORY: str(counts),
            "TMPDIR": str(folder),
            "OMP_NUM_THREADS": str(self.allotment.threads),
        }
        self._metrics = MetricsPort(self.addresses.metrics_host, self.addresses.metrics_port, counts)
        self._sockets = self._listen()
        for number in range(self.allotment.workers):
            self._workers.append(
                Supervisor(
                    number,
                    descriptor=self._sockets[number % len(self._sockets)].fileno(),
                    folder=folder,
                    environment=environment,
                    state=self._state,
                )
            )

    def _listen(self) -> list[socket.socket]:
        """One socket per worker, between which the kernel divides the connections; one for all where it does not."""
        several = self.allotment.workers > 1 and hasattr(socket, "SO_REUSEPORT")
        listeners = []
        for _ in range(self.allotment.workers if several else 1):
            listener = socket.socket(family(self.addresses.host))
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if several:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((self.addresses.host, self.addresses.port))
            listener.listen(_BACKLOG)
            listener.set_inheritable(True)
        return listeners

    def _stop(self) -> None:
        for worker in self._workers:
            worker.stop()
        self._workers = []
        for listener in self._sockets:
            listener.close()
        self._sockets = []
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None

    def _check_alive(self) -> None:
        for worker in self._workers:
            worker.look(self.options.watch_timeout, self.options.startup_timeout)

    def _is_live(self) -> bool:
        return True  # this process ends as soon as it has given up

    def _is_ready(self) -> bool:
        return not self._draining and any(worker.is_ready(_FRESH) for worker in self._workers)
