"""Watching a running TorchServe: is it alive, is it ready, and when is it beyond hope?

TorchServe's own `/ping` says 200 while no worker can load the model, and every address that reaches a worker waits in
the queue behind certificates. So the launcher judges for itself, by the marks that workers leave in the state folder
and, when those are old, by a real prediction; and it answers orchestrators at a port of its own, at once:

    GET /live     200 while the server may recover by itself
    GET /ready    200 while every model makes predictions and the server is not draining
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ..service import health
from ..service.state import State

__all__ = ["HealthPort", "Watch"]

_EVERY = 2.0  # seconds between two looks
_FRESH = 4.0  # a prediction this recent is evidence enough
_PROBE_TIMEOUT = 10.0


class Watch(threading.Thread):
    """Looks at the models of a server again and again. `failure` says why the server is beyond hope, if it is.

    A model is healthy if it made a prediction lately, or a worker has work in hand (TorchServe kills one that hangs),
    or it answers a health check now. One that has been none of this for `patience` seconds does not come back.
    """

    def __init__(self, state: State, url: str, models: Sequence[str], *, patience: float) -> None:
        super().__init__(name="robust-serve-watch", daemon=True)
        self.failure: str | None = None
        self._state, self._url, self._patience = state, url, patience
        self._healthy_at = dict.fromkeys(models, time.monotonic())
        self._ready = dict.fromkeys(models, False)
        self._end = threading.Event()

    @property
    def ready(self) -> bool:
        """Whether every model makes predictions, and new requests are welcome."""
        return all(self._ready.values()) and not self._state.marked("draining")

    def run(self) -> None:
        """Look until told to end."""
        while not self._end.wait(_EVERY):
            self.look()

    def look(self) -> None:
        """One look at every model."""
        for model in self._ready:
            self._ready[model] = self._is_healthy(model)
            now = time.monotonic()
            if self._ready[model]:
                self._healthy_at[model] = now
            elif now - self._healthy_at[model] > self._patience and not self._state.marked("draining"):
                self.failure = (
                    f"The model {model!r} has made no prediction for {now - self._healthy_at[model]:.0f} s and does "
                    "not answer; the lines above may say why."
                )

    def _is_healthy(self, model: str) -> bool:
        if self._state.seconds_since_success(model) < _FRESH or self._state.busy_workers():
            return True
        return health.is_ready(self._url, model, timeout=_PROBE_TIMEOUT)

    def end(self) -> None:
        """Look no more."""
        self._end.set()


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
            address_family = _family(host)

        self._server = Listener((host, port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="robust-serve-health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def _family(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
