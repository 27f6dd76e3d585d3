"""The proxy of serve/deploy before a server: nginx from its file, on other ports, started for one test."""

import contextlib
import dataclasses
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.lib.attack.target import TOKEN, Target, eventually

__all__ = ["behind"]

CONFIG = Path(__file__).parents[3] / "serve" / "deploy" / "proxy" / "nginx.conf"


@contextlib.contextmanager
def behind(target: Target, folder: Path, *, rate: str | None = None) -> Iterator[Target]:
    """The same server, reached through nginx. `rate` replaces the limit of requests per second and address."""
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = CONFIG.read_text()
    text = re.sub(r"127\.0\.0\.1:8000", f"127.0.0.1:{port}", text)
    text = re.sub(r"127\.0\.0\.1:8080", "{}:{}".format(*target.address), text)
    if rate is not None:
        text = re.sub(r"rate=\d+r/s", f"rate={rate}", text)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nginx.conf").write_text(text + "\ndaemon off;\n")
    (folder / "token.map").write_text(f'"Bearer {TOKEN}" 1;\n')
    (folder / "temporary").mkdir(exist_ok=True)
    with (folder / "nginx.log").open("wb") as log:
        process = subprocess.Popen([program, "-p", folder, "-c", "nginx.conf"], stderr=log)
    try:
        if eventually(lambda: _listens(port), seconds=30) is None:
            raise SystemExit(f"nginx did not start: {(folder / 'nginx.log').read_text()[-2000:]}")
        yield dataclasses.replace(target, url=f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(30)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
