"""Models and servers for the tests of serving."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from robustinfer import Client, Predictor

from ..waiting import PATIENCE, eventually
from .models import brightness_model, brightness_script

TOKEN = "a-token-for-tests-only-0123456789"
ENGINES = ("torchserve", "asgi")

_PATIENT = f"max_seconds = 3600\nread_timeout = {PATIENCE}\n"
"""Limits of time that are kept even on a busy machine, where work is slow and so are clients."""


@dataclass
class Server:
    """A `robust serve` in a process of its own."""

    process: subprocess.Popen[bytes]
    url: str
    metrics: str
    health: str
    pid: int
    log: Path
    token: str | None
    engine: str

    def http(self) -> httpx.Client:
        """A plain HTTP client, with the token."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE)

    def client(self, model: str = "tiny", **options: Any) -> Client:
        """The product's own client."""
        return Client(self.url, model=model, token=self.token, **options)

    def group(self) -> list[int]:
        """The processes of the server that are alive, but for the launcher: the virtual machine, and the workers."""
        listing = subprocess.run(["ps", "-eo", "pid=,pgid=,stat="], capture_output=True, text=True, check=True).stdout
        rows = [line.split() for line in listing.splitlines()]
        alive = [(int(pid), int(group)) for pid, group, state in rows if not state.startswith("Z")]
        if self.engine == "torchserve":
            return [pid for pid, group in alive if group == self.pid]
        folder = f"/robust-serve-{self.process.pid}-"  # each worker is named it, and leads a group of its own
        return [pid for pid, group in alive if pid == group and folder in _command_of(pid)]

    def workers(self) -> list[int]:
        """The worker processes."""
        program = "model_service_worker" if self.engine == "torchserve" else "robust.serve.asgi.worker"
        return [pid for pid in self.group() if program in _command_of(pid)]

    def folder(self) -> Path:
        """The launcher's private folder."""
        environment = Path(f"/proc/{self.workers()[0]}/environ").read_bytes().decode().split("\0")
        state = next(entry.partition("=")[2] for entry in environment if entry.startswith("ROBUST_SERVE_STATE="))
        return Path(state).parent

    def is_ready(self) -> bool:
        """Whether the launcher says so. It looks at when a worker was last well, which a busy machine may delay."""
        return httpx.get(f"{self.health}/ready", timeout=PATIENCE).status_code == 200

    def in_hand(self) -> int:
        """The requests that workers say they work on."""
        return sum(int(mark.read_text() or 0) for mark in self.folder().glob("state/busy-*"))

    def stop(self) -> int:
        """End the server as an operator does; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@contextmanager
def serving(
    folder: Path,
    *arguments: str,
    token: str | None = TOKEN,
    environment: dict[str, str] | None = None,
    engine: str = "torchserve",
) -> Iterator[Server]:
    """Run `robust serve` until the block ends; yields when it has printed its addresses.

    Unless the arguments name a configuration it is a patient one.
    """
    if "--config" not in arguments:
        patient = folder / "patient.toml"
        patient.write_text(_PATIENT)
        arguments = (*arguments, "--config", str(patient))
    log = folder / "serve.log"
    own = {"ROBUST_SERVE_TOKEN": token} if token else {"ROBUST_SERVE_AUTH": "none"}
    command = [sys.executable, "-c", "from robustinfer.cli.main import main; main()", "serve", "--json", "--port", "0"]
    command += ["--engine", engine, "--allow-seeds"]  # most tests compare with the library
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, **own, **(environment or {})},
        )
    try:
        printed = json.loads(_first_line(process, log))
        addresses = (printed["url"], printed["metrics"], printed["health"])
        yield Server(process, *addresses, pid=printed["pid"], log=log, token=token, engine=engine)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        process.stdout.close() if process.stdout else None


def _first_line(process: subprocess.Popen[bytes], log: Path) -> bytes:
    """The line with the addresses; a server that does not print one is ended, which ends the waiting."""
    assert process.stdout is not None
    waited = threading.Timer(PATIENCE, process.kill)
    waited.start()
    try:
        line = process.stdout.readline()
    finally:
        waited.cancel()
    assert line, f"robust serve did not start:\n{log.read_text()[-4000:]}"
    return line


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file: 8 x 8 grey images, three classes."""
    return brightness_model(tmp_path_factory.mktemp("models") / "tiny.onnx")


@pytest.fixture(scope="session")
def colour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TorchScript file: 4 x 4 colour images."""
    return brightness_script(tmp_path_factory.mktemp("models") / "colour.pt", name="colour", shape=(3, 4, 4))


@pytest.fixture(scope="session")
def predictor(tiny: Path) -> Predictor:
    """The same model in this process."""
    return Predictor.load(tiny, threads=1)


@pytest.fixture(scope="session")
def image() -> np.ndarray[Any, Any]:
    """A bright picture with some structure."""
    return np.random.default_rng(1).integers(150, 256, (8, 8), dtype=np.uint8)


def unless_busy(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """An answer other than 503, which on a busy machine a health check may have: it has a few seconds for its test."""
    answers: list[httpx.Response] = []

    def is_answered() -> bool:
        answers.append(ask())
        return answers[-1].status_code != 503

    eventually(is_answered)
    return answers[-1]


Start = Callable[[str], Server]


@pytest.fixture(scope="session")
def started(tiny: Path, colour: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """One server of each engine for all tests that only ask questions: two models, a token."""
    running: dict[str, Server] = {}
    with ExitStack() as stack:

        def start(engine: str) -> Server:
            if engine not in running:
                folder = tmp_path_factory.mktemp("server")
                (folder / "serve.toml").write_text(f"max_n = 50_000\nmax_deadline = 3600\n{_PATIENT}")
                arguments = (str(tiny), str(colour), "--config", str(folder / "serve.toml"))
                running[engine] = stack.enter_context(serving(folder, *arguments, engine=engine))
            return running[engine]

        yield start


TORCHSERVE_IS_SLOW = pytest.mark.parametrize(
    "engine", [pytest.param("torchserve", marks=pytest.mark.slow), "asgi"], indirect=True
)
"""Both engines, where starting and stopping TorchServe takes ten seconds."""


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine in turn."""
    return str(request.param)


@pytest.fixture
def server(started: Start, engine: str) -> Server:
    """The server of each engine in turn."""
    return started(engine)


@pytest.fixture(scope="session")
def torchserve(started: Start) -> Server:
    """The server of the engine TorchServe."""
    return started("torchserve")


@pytest.fixture(scope="session")
def asgi(started: Start) -> Server:
    """The server of the asgi engine."""
    return started("asgi")
