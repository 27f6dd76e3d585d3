"""Starting, watching, draining and stopping a TorchServe that serves model files."""

import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robustinfer.errors import MissingExtraError, ServeError
from robustinfer.files import write_text

from ..service import health, logs
from ..service.environment import inherited
from ..service.launching import BaseLauncher
from ..service.options import ServedModel, ServeOptions
from ..service.process import OwnedProcess
from ..service.state import ENVIRONMENT
from . import listeners, management, metrics
from .archive import pack
from .configuration import hosts_text, model_config, properties, render
from .java import find_java, version_of, vm_arguments
from .watch import Watch

__all__ = ["Launcher", "torchserve_home"]

_GRPC_PORTS = 2
_FAREWELL = 1.0  # seconds for TorchServe to end by itself: after a drain it has nothing left to do but to wait
_SETTLE = 0.3  # seconds between a worker's last answer and the last byte to the client


class Launcher(BaseLauncher):
    """A running TorchServe.

    `restart` is not offered: TorchServe restarts a worker that dies, and whoever runs this command restarts the rest.
    """

    engine = "TorchServe"

    def __init__(self, models: Sequence[ServedModel], options: ServeOptions) -> None:
        self.java = find_java()
        super().__init__(models, options)
        self._java_version = version_of(self.java)
        self._process: OwnedProcess | None = None
        self._watch: Watch | None = None
        self.grpc_closed = False

    @property
    def pid(self) -> int:
        """The process id of the Java virtual machine."""
        if self._process is None:
            raise ServeError("The server is not running.")
        return self._process.pid

    def facts(self) -> dict[str, Any]:
        """Which Java is used."""
        return {"java": str(self.java)}

    def remarks(self) -> list[str]:
        """Whether the ports of gRPC are open."""
        if self.grpc_closed:
            return []
        return ["TorchServe's gRPC ports could not be closed; programs on this machine can reach them."]

    def wait_ready(self) -> None:
        """Return when every model has answered a real prediction."""
        deadline = time.monotonic() + self.options.startup_timeout
        for model in self.models:
            while not health.is_ready(self.addresses.url, model.name):
                self._check_alive()
                if self._wanted_end.is_set():
                    raise ServeError("The server was stopped before it was ready.")
                if time.monotonic() > deadline:
                    raise ServeError(
                        f"The model {model.name!r} made no prediction within {self.options.startup_timeout:g} s; "
                        "the lines above say why (startup_timeout in the configuration allows more time)."
                    )
                time.sleep(0.05)
        self.grpc_closed = self._close_grpc()
        names = [model.name for model in self.models]
        watch = Watch(self._state, self.addresses.url, names, patience=self.options.watch_timeout)
        watch.look()
        watch.start()
        self._watch = watch

    def drain(self) -> int:
        """Answer what has arrived, refuse what comes, and return when no worker is busy (or after `drain_timeout`).

        Returns the number of accepted requests that were not answered in that time.

        TorchServe cannot stop listening, so the workers do the refusing. Its queues are first in, first out: once a
        health check sent after the mark `draining` is answered, all that came before it is in a worker's hands.
        """
        deadline = time.monotonic() + self.drain_seconds
        self._state.mark("draining")
        sent = 0  # by this method, to be told from accepted requests
        for model in self.models:
            sent += 1
            while not health.has_passed(self.addresses.url, model.name, timeout=max(0.1, deadline - time.monotonic())):
                if time.monotonic() > deadline or self._process is None or self._process.exit_code() is not None:
                    return max(0, self._unanswered() - sent)
                time.sleep(0.05)
                sent += 1
        self._state.mark("stopping")
        while self._state.busy_workers() and time.monotonic() < deadline:
            time.sleep(0.02)
        unanswered = self._unanswered()
        time.sleep(_SETTLE)
        return unanswered

    def _unanswered(self) -> int:
        """Requests in the hands of workers, and those that wait for one."""
        assert self._folder is not None
        socket = _management(self._folder.path)
        waiting = sum(management.pending_requests(socket, model.name) for model in self.models)
        return sum(self._state.busy_workers().values()) + waiting

    def _longest_queue(self) -> int:
        return self.options.waiting // self.allotment.workers + self.options.batch_size

    def _start(self, folder: Path) -> None:
        store = folder / "store"
        for model in self.models:
            config = model_config(model, self.options, self.limits, self.allotment)
            card = model.card if model.beside else None
            archive = store / f"{model.name}.mar"
            pack(model.path, archive, name=model.name, version=model.version, config=config, card=card)
        write_text(folder / "config.properties", self.properties_text(folder))
        write_text(folder / "metrics.yaml", metrics.config_text())
        if names := hosts_text(self.addresses):
            write_text(folder / "hosts", names)
        write_text(folder / "log4j2.xml", logs.LOG4J)
        own = {ENVIRONMENT: str(folder / "state"), "TMPDIR": str(folder)}
        environment = self.allotment.environment(inherited(os.environ, also=self.options.environment)) | own
        self._process = OwnedProcess(self._command(folder), environment=environment, folder=folder)

    def _stop(self) -> None:
        if self._watch is not None:
            self._watch.end()
            self._watch = None
        if self._process is not None:
            self._process.stop(patience=_FAREWELL)
            self._process = None

    def _check_folder(self, folder: Path) -> None:
        super()._check_folder(folder)
        if not str(folder).isascii():
            raise ServeError(f"TorchServe cannot work in {folder}, whose name is not ASCII: set TMPDIR to another one.")
        if hasattr(os, "ST_NOEXEC") and os.statvfs(folder).f_flag & os.ST_NOEXEC:
            raise ServeError(
                f"TorchServe loads a native library from its temporary folder, and {folder} is on a file system "
                "mounted noexec: set TMPDIR to another one, or mount it with exec."
            )

    def properties_text(self, folder: Path) -> str:
        """TorchServe's configuration for files in `folder`."""
        return render(
            properties(
                self.models,
                self.options,
                self.limits,
                self.allotment,
                addresses=self.addresses,
                management=_management(folder),
                store=folder / "store",
                metrics_config=folder / "metrics.yaml",
            )
        )

    def _command(self, folder: Path) -> list[str]:
        home = torchserve_home()
        return [
            str(self.java),
            *vm_arguments(self._java_version, heap_megabytes=self.options.heap_megabytes),
            f"-Dmodel_server_home={home}",
            f"-Djava.io.tmpdir={folder}",
            *([f"-Djdk.net.hosts.file={folder / 'hosts'}"] if (folder / "hosts").exists() else []),
            f"-Dlog4j.configurationFile={(folder / 'log4j2.xml').as_uri()}",
            "-cp",
            str(home / "ts" / "frontend" / "*"),
            "org.pytorch.serve.ModelServer",
            "--python",
            sys.executable,
            "-f",
            str(folder / "config.properties"),
            "-s",
            str(folder / "store"),
            "-ncs",  # no snapshots of the configuration, which would bring back an old state
        ]

    def _is_live(self) -> bool:
        return self._process is None or (
            self._process.exit_code() is None and (self._watch is None or self._watch.failure is None)
        )

    def _is_ready(self) -> bool:
        return self._watch is not None and self._watch.ready

    def _close_grpc(self) -> bool:
        """Close TorchServe's gRPC ports, which it opens after the others; False where that is not possible."""
        keep = (self.addresses.port, self.addresses.metrics_port)
        deadline = time.monotonic() + 5
        while len(listeners.listening_ports(self.pid)) < len(keep) + _GRPC_PORTS and time.monotonic() < deadline:
            time.sleep(0.05)
        return listeners.close_other_listeners(self.pid, keep=keep)

    def _check_alive(self) -> None:
        code = self._process.exit_code() if self._process else 1
        if code is not None:
            raise ServeError(f"TorchServe ended unexpectedly with exit code {code}; the lines above say why.")
        if self._watch is not None and self._watch.failure is not None:
            raise ServeError(self._watch.failure)


def _management(folder: Path) -> Path:
    """The socket of the management interface: a file in a private folder, never a port."""
    return folder / "management.sock"


def torchserve_home() -> Path:
    """The folder that holds TorchServe's package `ts`, which is found and not imported: importing it opens files."""
    found = importlib.util.find_spec("ts")
    if found is None or found.origin is None:
        raise MissingExtraError("serve", "robust serve", "ts")
    return Path(found.origin).resolve().parent.parent
