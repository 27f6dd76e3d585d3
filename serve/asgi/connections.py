"""Connections: how long one may take to say what it wants, how many there may be, and what a broken request is told.

uvicorn waits forever for the first request of a connection and for the rest of a body that nobody reads. This protocol
does not: whoever is silent for too long is disconnected, and when there are too many connections, the one that has been
waiting longest without a request in work makes room for the next.
"""

import asyncio
import json
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["LimitedProtocol", "limited"]


class Gathering:
    """A transport that sends what is written in one turn of the event loop at once.

    uvicorn writes head and body of an answer one after the other. Each system call lets go of the interpreter, and the
    engine's threads are quick to take it.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._written: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send the bytes before the next turn of the event loop."""
        if not self._written:
            self._loop.call_soon(self._send)
        self._written.append(data)

    def close(self) -> None:
        """Send what was written, and hang up."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        written, self._written = self._written, []
        if written:
            self._transport.write(b"".join(written))


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 with limits; `limited` sets them."""

    header_seconds = 10.0
    most = 1024

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock, and make room if there are too many."""
        self.deadline: asyncio.TimerHandle | None = None
        self.silent_since = self.loop.time()
        super().connection_made(cast(asyncio.Transport, Gathering(transport, self.loop)))
        if len(self.connections) > self.most:
            self._make_room()
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, or of something that is none."""
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # rubbish while an answer is on its way: there is no way to say so
            self.transport.abort()
        if self.is_working:
            self._stop_clock()
        elif self.deadline is None:  # the next request has begun
            self._start_clock()

    @property
    def is_working(self) -> bool:
        """Whether a request has come whose answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def on_response_complete(self) -> None:
        """The rest of a body that nobody reads may come, but not forever; for the next request uvicorn has a clock.

        That one is longer: a proxy in front keeps connections for a minute, and an answer is lost if it asks on one
        that is being closed.
        """
        self.silent_since = self.loop.time()
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing() and not self.is_working:
            self._start_clock()

    def send_400_response(self, msg: str) -> None:
        """Something that is not HTTP gets the same kind of answer as a bad request."""
        error = {"code": "not_http", "message": "This is not an HTTP/1.1 request.", "request_id": None}
        body = json.dumps({"error": error}).encode()
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _start_clock(self) -> None:
        self._stop_clock()
        self.deadline = self.loop.call_later(self.header_seconds, self._too_late)

    def _stop_clock(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def _too_late(self) -> None:
        if not self.is_working:
            self.transport.abort()

    def _make_room(self) -> None:
        silent = [one for one in self.connections if isinstance(one, LimitedProtocol) and not one.is_working]
        oldest = min(silent, key=lambda one: one.silent_since, default=self)
        oldest.transport.abort()


def limited(*, header_seconds: float, most: int) -> type[LimitedProtocol]:
    """The protocol with these limits, as a class, which is what uvicorn asks for."""
    limits: dict[str, Any] = {"header_seconds": header_seconds, "most": most}
    return type("LimitedProtocol", (LimitedProtocol,), limits)
