"""Asking TorchServe's management interface, which is a socket file in the launcher's private folder."""

import http.client
import json
import socket
from pathlib import Path

__all__ = ["pending_requests"]

_TIMEOUT = 5.0


class _Connection(http.client.HTTPConnection):
    """HTTP over a socket file."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT)
        self.sock.connect(str(self._path))


def pending_requests(path: Path, model: str) -> int:
    """The requests that wait for a worker of this model; 0 where TorchServe does not say."""
    connection = _Connection(path)
    try:
        connection.request("GET", f"/models/{model}")
        document = json.loads(connection.getresponse().read())
        return int(document[0]["jobQueueStatus"]["pendingRequests"])
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
