"""Asking a server whether it is ready: the launcher does, and so does a container's health check."""

import http.client
import os
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

__all__ = ["has_passed", "health_url", "is_ready", "main"]


def health_url(url: str, name: str) -> str:
    """The address of a model's health check. It needs no token."""
    return f"{url}/models/{name}/invoke?mode=health"


def is_ready(url: str, name: str, *, timeout: float = 10.0) -> bool:
    """Whether the model makes predictions."""
    return _status(health_url(url, name), timeout) == 200


def has_passed(url: str, name: str, *, timeout: float) -> bool:
    """Whether a worker has answered, anything at all: then all that was queued before is in the hands of a worker.

    TorchServe itself answers 503 when its queue is full, as a worker does that drains; only the worker's answer names
    its model.
    """
    return _status(health_url(url, name), timeout, by_worker=True) is not None


def _status(url: str, timeout: float, *, by_worker: bool = False) -> int | None:
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            status, headers = response.status, response.headers
    except urllib.error.HTTPError as error:
        with error:
            status, headers = error.code, error.headers
    except (OSError, http.client.HTTPException):
        return None
    if by_worker and "X-Model-Digest" not in headers:
        return None
    return int(status)


def main() -> int:
    """`python -m robust.serve.service.probes`: 0 if every model of the server in this container predicts, else 1.

    The names are those of the archives in the server's private folder, the port that of ROBUST_SERVE_PORT.
    """
    names = {path.stem for path in Path(tempfile.gettempdir()).glob("robust-serve-*/store/*.mar")}
    url = f"http://127.0.0.1:{os.environ.get('ROBUST_SERVE_PORT', '8080')}"
    waiting = sorted(name for name in names if not is_ready(url, name))
    if names and not waiting:
        return 0
    sys.stderr.write(f"not ready: {', '.join(waiting) or 'there is no server'}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
