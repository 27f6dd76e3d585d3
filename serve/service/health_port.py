"""Health for orchestrators, at a port of its own: the launcher answers at once, however busy the workers are.

GET /live     200 while the server may recover by itself
GET /ready    200 while every model makes predictions and the server is not draining
"""

import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .addresses import family

__all__ = ["HealthPort"]


class HealthPort:
    """Answers `/live` and `/ready` without waiting for anything."""

    def __init__(self, host: str, port: int, *, live: Callable[[], bool], ready: Callable[[], bool]) -> None:
        answers = {"/live": live, "/ready": ready}

        class Handler(BaseHTTPRequestHandler):
            """GET only; no word about the model."""

            timeout = 5  # seconds a connection may take to say what it wants

            def do_GET(self) -> None:
                known = answers.get(self.path.partition("?")[0])
                status = HTTPStatus.NOT_FOUND
                if known is not None:
                    status = HTTPStatus.OK if known() else HTTPStatus.SERVICE_UNAVAILABLE
                body = json.dumps({"ok": status == HTTPStatus.OK}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Probes come every few seconds: they are not worth a line."""

        class Listener(ThreadingHTTPServer):
            """IPv6 where the address is one."""

            daemon_threads = True
            address_family = family(host)

        self._server = Listener((host, port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="robust-serve-health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
