"""The server that the pages ask: `robust serve` as they start it, with what it printed."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from ..waiting import PATIENCE

__all__ = ["Served", "serve"]


@dataclass(frozen=True)
class Served:
    """A running server, its addresses and its token, all read from what it printed."""

    printed: str
    url: str
    metrics: str
    health: str
    token: str

    def here(self, text: str) -> str:
        """Text of a page with the addresses of this server."""
        return text.replace("http://127.0.0.1:8080", self.url).replace("http://127.0.0.1:8082/metrics", self.metrics)

    def there(self) -> str:
        """What was printed, as a page shows it: with the default ports and without the token."""
        text = self.printed.replace(self.metrics, "http://127.0.0.1:8082/metrics")
        text = text.replace(self.health, "http://127.0.0.1:8081/ready")
        return text.replace(self.url, "http://127.0.0.1:8080").replace(self.token, "...").rstrip()

    def http(self) -> httpx.Client:
        """A client with the token."""
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {self.token}"}, timeout=PATIENCE)

    def environment(self) -> dict[str, str]:
        """The variables that the pages use."""
        return {
            "URL": self.url,
            "TOKEN": self.token,
            "AUTH": f"Authorization: Bearer {self.token}",
            "ROBUST_SERVE_TOKEN": self.token,
        }


@contextmanager
def serve(folder: Path, model: str, log: Path) -> Iterator[Served]:
    """`robust serve MODEL` on free ports, until the block ends."""
    command = [str(Path(sys.executable).with_name("robust")), "serve", "--port", "0", "--metrics-port", "0", model]
    command.append("--allow-seeds")  # what a page shows does not depend on luck
    own = {name: value for name, value in os.environ.items() if not name.startswith("ROBUST_SERVE_")}
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, cwd=folder, env=own, stdout=subprocess.PIPE, stderr=stderr, text=True)
    waited = threading.Timer(PATIENCE, process.kill)
    waited.start()
    try:
        try:
            served = _read(process, log)
        finally:
            waited.cancel()
        yield served
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)


def _read(process: subprocess.Popen[str], log: Path) -> Served:
    """Wait for the last line, which is the one to try."""
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or "curl" not in lines[-1]:
        line = process.stdout.readline()
        assert line, f"robust serve did not start:\n{log.read_text()[-4000:]}"
        lines.append(line)
    printed = "".join(lines)
    url, metrics, health, token = (
        re.findall(pattern, printed)[0]
        for pattern in (r"(http://\S+)/predictions", r"metrics: (\S+)", r"health:  (\S+)", r"Bearer ([\w-]+)")
    )
    return Served(printed, url, metrics, health, token)
