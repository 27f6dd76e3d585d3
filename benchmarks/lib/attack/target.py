"""The server that is attacked: started by a command, looked at from outside through /proc, reached on loopback only."""

import contextlib
import http.client
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ..processes import family, processor_seconds

__all__ = ["START", "TOKEN", "Target", "eventually", "started"]

START = "robust serve small={model} --json --port 0"
"""The command by default; it prints one JSON object with url, health, metrics and pid when it is ready."""
TOKEN = "a-token-for-the-attack-0123456789"
_READY = 300.0  # seconds
_WORKERS = ("model_service_worker", "asgi.worker")  # in the command lines of TorchServe's workers, and of ours
_DECODER = "service.decoding"  # a process that is killed and restarted by design


@dataclass
class Target:
    """A running server."""

    process: subprocess.Popen[bytes]
    url: str
    health: str
    log: Path

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of its clients."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 80

    def ask(
        self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, *, timeout: float = 120
    ) -> tuple[int, bytes]:
        """Status and body of one request with the token; a POST if there is a body."""
        return self.ask_plainly(path, body, {"Authorization": f"Bearer {TOKEN}", **(headers or {})}, timeout=timeout)

    def ask_plainly(
        self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, *, timeout: float = 120
    ) -> tuple[int, bytes]:
        """The same without a token."""
        return request(self.address, path, body, headers or {}, timeout=timeout)

    def is_ready(self, *, timeout: float = 5) -> tuple[bool, float]:
        """What readiness says, and after how many seconds; not ready if it says nothing."""
        parts, began = urlsplit(self.health), time.perf_counter()
        try:
            status, _ = request((parts.hostname or "", parts.port or 80), "/ready", None, {}, timeout=timeout)
        except (OSError, http.client.HTTPException):
            status = 0
        return status == 200, time.perf_counter() - began

    def processes(self) -> dict[int, str]:
        """The command and all its descendants that are alive, with their command lines."""
        return {pid: _command(pid) for pid in family(self.process.pid)}

    def workers(self) -> set[int]:
        """Every process of the server but those that decode pictures, which may come and go."""
        return {pid for pid, command in self.processes().items() if _DECODER not in command}

    def engines(self) -> list[int]:
        """The processes that compute: the workers, or the server itself where there are none."""
        processes = self.processes()
        workers = [pid for pid, command in processes.items() if any(word in command for word in _WORKERS)]
        return workers or [self.process.pid]

    def megabytes(self) -> float:
        """Resident memory of all processes."""
        return sum(_status(pid, "VmRSS:") for pid in self.processes()) / 1024

    def descriptors(self) -> int:
        """Open descriptors of all processes."""
        return sum(_count(Path(f"/proc/{pid}/fd")) for pid in self.processes())

    def processor_seconds(self) -> float:
        """Processor time of all processes so far."""
        return processor_seconds(self.processes())

    def stop(self) -> int:
        """End the server as an operator does; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(600)


def request(
    address: tuple[str, int], path: str, body: bytes | None, headers: Mapping[str, str], *, timeout: float
) -> tuple[int, bytes]:
    """One request over a connection of its own."""
    connection = http.client.HTTPConnection(*address, timeout=timeout)
    try:
        connection.request("GET" if body is None else "POST", path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@contextlib.contextmanager
def started(
    command: str,
    model: Path,
    folder: Path,
    *options: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Target]:
    """Start the server, wait until it is ready, and end it afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    words = [word.format(model=model) for word in shlex.split(command)] + list(options)
    if words[0] == "robust":  # the one of this interpreter
        words = [str(Path(sys.executable).with_name("robust")), *words[1:]]
    own = {"ROBUST_SERVE_TOKEN": TOKEN, **(environment or {})}
    with log.open("wb") as stderr:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stderr, env={**os.environ, **own})
    try:
        printed = json.loads(_first_line(process, log))
        yield Target(process, printed["url"], printed["health"], log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(600)
        except subprocess.TimeoutExpired:
            process.kill()
        if process.stdout:
            process.stdout.close()


def eventually(condition: Callable[[], bool], *, seconds: float) -> float | None:
    """The seconds until a condition holds; None if it never does in that time."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            return None
        time.sleep(0.05)
    return time.monotonic() - began


def _first_line(process: subprocess.Popen[bytes], log: Path) -> bytes:
    assert process.stdout is not None
    end = time.monotonic() + _READY
    while time.monotonic() < end and process.poll() is None:
        if select.select([process.stdout], [], [], 0.5)[0] and (line := process.stdout.readline()):
            return line
    raise SystemExit(f"The server did not start (exit code {process.poll()}):\n{log.read_text()[-3000:]}")


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _status(pid: int, key: str) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/status").read_text().partition(key)[2].split()[0])
    return 0


def _count(folder: Path) -> int:
    with contextlib.suppress(OSError):
        return sum(1 for _ in folder.iterdir())
    return 0
