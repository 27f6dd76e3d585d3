"""Starting, watching, draining and stopping a TorchServe that serves model files."""

import contextlib
import fcntl
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from robustinfer.errors import ArgumentError, MissingExtraError, ServeError
from robustinfer.files import write_text
from robustinfer.signing import PrivateKey, read_passphrase

from ..service import health, logs
from ..service.state import ENVIRONMENT, State
from . import listeners, management, metrics
from .archive import pack
from .configuration import Addresses, model_config, properties, render
from .devices import allot
from .environment import inherited
from .java import find_java, version_of, vm_arguments
from .options import ServedModel, ServeOptions
from .process import OwnedProcess
from .watch import HealthPort, Watch

__all__ = ["Launcher"]

TOKEN_ENVIRONMENT = "ROBUST_SERVE_TOKEN"
_LONGEST_FOLDER = 80  # a Unix socket's path has at most 107 bytes on Linux, 103 on macOS
_PREFIX = "robust-serve-"
_LOCK = "lock"
_GRPC_PORTS = 2
_FAREWELL = 1.0  # seconds for TorchServe to end by itself: after a drain it has nothing left to do but to wait
_SETTLE = 0.3  # seconds between a worker's last answer and the last byte to the client


class Launcher:
    """A running server. Use it as a context manager: leaving it ends all processes and removes all files.

        with Launcher(models, options) as server:
            server.wait_ready()
            server.wait()

    `restart` is not offered: TorchServe restarts a worker that dies, and whoever runs this command restarts the rest.
    """

    def __init__(self, models: Sequence[ServedModel], options: ServeOptions) -> None:
        self.models = tuple(models)
        self.options = options
        self.java = find_java()
        paths = [model.path for model in self.models]
        self.allotment = allot(options.device, models=paths, workers=options.workers, threads=options.threads)
        self.limits = options.limits(self.models)
        self.token, self.token_is_ours = _token(options)
        self.key = _signing_key(options)
        self._java_version = version_of(self.java)
        self._folder: Path | None = None
        self._lock: int | None = None
        self._process: OwnedProcess | None = None
        self._watch: Watch | None = None
        self._health: HealthPort | None = None
        self._wanted_end = threading.Event()
        self._wanted_reload = threading.Event()
        self.grpc_closed = False
        self.addresses = self._choose_addresses(Path("management.sock"))

    def __enter__(self) -> "Launcher":
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process id of the Java virtual machine."""
        if self._process is None:
            raise ServeError("The server is not running.")
        return self._process.pid

    def end(self) -> None:
        """Ask the server to end; `wait` returns soon after. Safe to call in a signal handler."""
        self._wanted_end.set()

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

    def wait(self) -> None:
        """Return when the end is asked for; raise `ServeError` if the server dies by itself, or half of it does."""
        while not self._wanted_end.wait(0.2):
            self._check_alive()
            if self._watch is not None and self._watch.failure is not None:
                raise ServeError(self._watch.failure)
            if self._wanted_reload.is_set():
                self._wanted_reload.clear()
                self._reload_token()

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

    @property
    def drain_seconds(self) -> float:
        """How long a drain may take: by default as long as the accepted work may take at the most."""
        if self.options.drain_timeout is not None:
            return self.options.drain_timeout
        waiting = self.options.queue // self.allotment.workers + self.options.batch_size
        return max(30.0, waiting * max(self.limits.max_seconds, self.limits.max_deadline))

    def _unanswered(self) -> int:
        """Requests in the hands of workers, and those that wait for one."""
        waiting = sum(management.pending_requests(self.addresses.management, model.name) for model in self.models)
        return sum(self._state.busy_workers().values()) + waiting

    def close(self) -> None:
        """End all processes of the server and remove its files."""
        if self._watch is not None:
            self._watch.end()
            self._watch = None
        if self._health is not None:
            self._health.close()
            self._health = None
        if self._process is not None:
            self._process.stop(patience=_FAREWELL)
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

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

    def _prepare(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")).resolve()
        self._folder = folder
        _check_folder(folder)
        self._lock = _hold(folder)
        self.addresses = self._choose_addresses(folder / "management.sock")
        _require_free(self.addresses.host, self.addresses.port)
        _require_free(self.addresses.metrics_host, self.addresses.metrics_port)
        self._state = State.create(folder / "state", token=self.token, key=self.key)
        _require_free(self.addresses.metrics_host, self.addresses.health_port)
        write_text(folder / health.HEALTH_FILE, self.addresses.health_url)
        self._health = HealthPort(
            self.addresses.metrics_host, self.addresses.health_port, live=self._is_live, ready=self._is_ready
        )
        store = folder / "store"
        for model in self.models:
            config = model_config(model, self.options, self.limits, self.allotment)
            card = model.card if model.beside else None
            archive = store / f"{model.name}.mar"
            pack(model.path, archive, name=model.name, version=model.version, config=config, card=card)
        write_text(folder / "config.properties", self.properties_text(folder))
        write_text(folder / "metrics.yaml", metrics.config_text())
        write_text(folder / "log4j2.xml", logs.LOG4J)
        own = {ENVIRONMENT: str(folder / "state"), "TMPDIR": str(folder)}
        environment = self.allotment.environment(inherited(os.environ, also=self.options.environment)) | own
        self._process = OwnedProcess(self._command(folder), environment=environment, folder=folder)

    def properties_text(self, folder: Path) -> str:
        """TorchServe's configuration for files in `folder`."""
        return render(
            properties(
                self.models,
                self.options,
                self.limits,
                self.allotment,
                addresses=self.addresses,
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

    def _choose_addresses(self, management: Path) -> Addresses:
        port = self.options.port or _require_free(self.options.host, 0)
        # By custom the metrics stand two ports above. A server on any free port has them on any free port, too.
        beside = port + 2 if self.options.port else 0
        metrics_port = self.options.metrics_port if self.options.metrics_port is not None else beside
        metrics_port = metrics_port or _require_free(self.options.metrics_host, 0)
        beside = port + 1 if self.options.port else 0
        health_port = self.options.health_port if self.options.health_port is not None else beside
        health_port = health_port or _require_free(self.options.metrics_host, 0)
        if len({port, metrics_port, health_port}) < 3:
            raise ArgumentError(
                f"port, metrics_port and health_port must differ; found {port}, {metrics_port} and {health_port}."
            )
        return Addresses(self.options.host, port, self.options.metrics_host, metrics_port, health_port, management)

    def _is_live(self) -> bool:
        return self._process is None or (
            self._process.exit_code() is None and (self._watch is None or self._watch.failure is None)
        )

    def _is_ready(self) -> bool:
        return self._watch is not None and self._watch.ready

    def _reload_token(self) -> None:
        try:
            self.token, _ = _token(self.options)
        except ServeError as error:
            logs.announce("token not changed", reason=str(error))
            return
        if self.token is not None:
            self._state.change_token(self.token)
        logs.announce("token read again")

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


def _sweep(parent: Path) -> None:
    """Remove the folders of servers that were killed with no chance to do so: each holds a copy of its models."""
    for folder in parent.glob(f"{_PREFIX}*-*"):
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


def _hold(folder: Path) -> int:
    """Lock the folder for as long as this process lives, so that no other server sweeps it away."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _check_folder(folder: Path) -> None:
    """Refuse a temporary folder in which TorchServe would fail with a message that does not say so."""
    if len(str(folder).encode()) > _LONGEST_FOLDER:
        raise ServeError(f"The temporary folder {folder} has too long a name for sockets: set TMPDIR to a shorter one.")
    if not str(folder).isascii():
        raise ServeError(f"TorchServe cannot work in {folder}, whose name is not ASCII: set TMPDIR to another one.")
    if hasattr(os, "ST_NOEXEC") and os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise ServeError(
            f"TorchServe loads a native library from its temporary folder, and {folder} is on a file system mounted "
            "noexec: set TMPDIR to another one, or mount it with exec."
        )


def torchserve_home() -> Path:
    """The folder that holds TorchServe's package `ts`, which is found and not imported: importing it opens files."""
    found = importlib.util.find_spec("ts")
    if found is None or found.origin is None:
        raise MissingExtraError("serve", "robust serve", "ts")
    return Path(found.origin).resolve().parent.parent


def _token(options: ServeOptions) -> tuple[str | None, bool]:
    """The token, and whether it was made here (then somebody has to be told)."""
    if options.auth == "none":
        return None, False
    if options.token_file is not None:
        try:
            token = options.token_file.read_text().strip()
        except OSError as error:
            raise ServeError(f"The token file {options.token_file} cannot be read: {error.strerror}.") from error
    else:
        token = os.environ.get(TOKEN_ENVIRONMENT, "").strip()
        if not token:
            return secrets.token_urlsafe(32), True
    if len(token) < 16:
        raise ServeError("A token has at least 16 characters; make one with: openssl rand -base64 32.")
    return token, False


def _signing_key(options: ServeOptions) -> PrivateKey | None:
    """The key that signs, read before anything starts: a wrong one is refused with a sentence."""
    if options.sign_key is None:
        return None
    return PrivateKey.load(options.sign_key, passphrase=read_passphrase(options.passphrase_file))


def _require_free(host: str, port: int) -> int:
    """The port, or any free one for 0; a sentence if another program has it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As the server does: connections of a former one that are still closing do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ServeError(f"Cannot listen on {host}, port {port}: {error.strerror}.") from error
        return int(probe.getsockname()[1])
