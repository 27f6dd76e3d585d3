"""Asking a server whether it is ready: the launcher does, and so does a container's health check."""

import http.client
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

__all__ = ["HEALTH_FILE", "WORKER", "has_passed", "health_url", "is_ready", "main"]

HEALTH_FILE = "health"
WORKER = "X-Robust-Worker"
"""A header of every answer that a worker gave; what TorchServe answers by itself has none."""

# Straight to the server: a proxy of the environment (http_proxy) knows nothing of loopback addresses.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def health_url(url: str, name: str) -> str:
    """The address of a model's health check. It needs no token."""
    return f"{url}/models/{name}/invoke?mode=health"


def is_ready(url: str, name: str, *, timeout: float = 10.0) -> bool:
    """Whether the model makes predictions."""
    return _status(health_url(url, name), timeout) == 200


def has_passed(url: str, name: str, *, timeout: float) -> bool:
    """Whether a worker has answered, anything at all: then all that was queued before is in the hands of a worker.

    TorchServe itself answers 503 when its queue is full, as a worker does that drains; only the worker's answer has
    its header.
    """
    return _status(health_url(url, name), timeout, by_worker=True) is not None


def _status(url: str, timeout: float, *, by_worker: bool = False) -> int | None:
    try:
        with _OPENER.open(url, timeout=timeout) as response:
            status, headers = response.status, response.headers
    except urllib.error.HTTPError as error:
        with error:
            status, headers = error.code, error.headers
    except (OSError, http.client.HTTPException):
        return None
    if by_worker and WORKER not in headers:
        return None
    return int(status)


def main() -> int:
    """`python -m robust.serve.service.health`: 0 if the server in this container makes predictions, else 1.

    A server writes the address of its health port into its private folder, whatever its options are.
    """
    found = sorted(Path(tempfile.gettempdir()).glob(f"robust-serve-*/{HEALTH_FILE}"))
    waiting = [url for file in found if _status(f"{(url := file.read_text().strip())}/ready", 5.0) != 200]
    if found and not waiting:
        return 0
    sys.stderr.write(f"not ready: {', '.join(waiting) or 'there is no server'}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
