"""Connections: how long one may take to say what it wants, how many there may be, and what a broken request is told.

uvicorn waits forever for the first request of a connection and for the rest of a body that nobody reads. This protocol
does not: whoever is silent for too long is disconnected, and when there are too many connections, the one that has been
waiting longest without a request in work makes room for the next. Plain requests pass h11 by (`plain.py`).
"""

import asyncio
import json
from typing import Any, cast
from urllib.parse import unquote

import h11
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.h11_impl import H11Protocol

from .plain import HANG_UP, PlainCycle, PlainRequest, plain_request

__all__ = ["Gathering", "LimitedProtocol", "limited"]

_IDLE = {h11.CLIENT: h11.IDLE, h11.SERVER: h11.IDLE}


class Gathering:
    """A transport that sends what is written in one turn of the event loop at once.

    uvicorn writes head and body of an answer one after the other. Each system call lets go of the interpreter, and the
    engine's threads are quick to take it.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._written: list[bytes] = []
        self.is_closing = transport.is_closing  # asked for at every request

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
        self._missing = 0  # bytes of a plain request's body that have not come
        self._early = b""  # what came after a plain request, before its answer was complete
        super().connection_made(cast(asyncio.Transport, Gathering(transport, self.loop)))
        if len(self.connections) > self.most:
            self._make_room()
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_clock()
        super().connection_lost(exc)
        if isinstance(self.cycle, PlainCycle):
            self.cycle.hang_up()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, or of something that is none."""
        try:
            unread = self._take_plain(data)
            if unread:
                super().data_received(unread)
        except h11.LocalProtocolError:  # rubbish while an answer is on its way: there is no way to say so
            self.transport.abort()
        if self.is_working:
            self._stop_clock()
        elif self._is_between_requests:
            self._rest()
        elif self.deadline is None:  # the next request has begun
            self._start_clock()

    def _take_plain(self, data: bytes) -> bytes:
        """What is left for h11 when plain requests have the bytes that belong to them.

        The rest of a body must not reach h11 even where an unusual request follows it in the same bytes: h11 would read
        the body as a request.
        """
        self._unset_keepalive_if_required()
        if isinstance(self.cycle, PlainCycle):
            data = self._take_body(data)
            if self.is_working and data:
                self._early += data
                if len(self._early) > HIGH_WATER_LIMIT:  # not before: who does not read does not see a client hang up
                    self.flow.pause_reading()
            if self.is_working or not data:
                return b""
        if self.conn.states != _IDLE or self.conn.trailing_data[0]:  # in the middle of what h11 reads
            return data
        request = plain_request(data)
        if request is None:
            return data
        self._begin(request)
        return self._take_plain(data[request.begin :])

    def _begin(self, request: PlainRequest) -> None:
        path = self.root_path + unquote(request.path.decode())
        scope: Any = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": request.method,
            "root_path": self.root_path,
            "path": path,
            "raw_path": self.root_path.encode() + request.path,
            "query_string": request.query,
            "headers": request.headers,
            "state": self.app_state.copy(),
        }
        self._missing = request.length
        self.cycle = PlainCycle(
            scope=scope,
            conn=self.conn,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            on_response=self.on_response_complete,
        )
        scope["extensions"] = {HANG_UP: self.cycle.when_gone}
        task = self.loop.create_task(self.cycle.run_asgi(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def _take_body(self, data: bytes) -> bytes:
        """What is left of the data when the body of the plain request has its part, which nobody reads any more
        once there is an answer."""
        piece = data[: self._missing]
        self._missing -= len(piece)
        if self.is_working:
            self.cycle.body += piece
            self.cycle.more_body = self._missing > 0
            self.cycle.message_event.set()
        return data[len(piece) :]

    @property
    def is_working(self) -> bool:
        """Whether a request has come whose answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_between_requests(self) -> bool:
        """Whether a request was answered, all of it has come, and nothing of the next one has."""
        complete = self.cycle is not None and self.cycle.response_complete and not self._missing
        return complete and self.conn.states == _IDLE and not self.conn.trailing_data[0]

    def _rest(self) -> None:
        """The rest of a body came after its answer: from now on the connection may be silent as after any other."""
        self._stop_clock()
        self._unset_keepalive_if_required()
        self.silent_since = self.loop.time()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def on_response_complete(self) -> None:
        """The rest of a body that nobody reads may come, but not forever; for the next request uvicorn has a clock.

        That one is longer: a proxy in front keeps connections for a minute, and an answer is lost if it asks on one
        that is being closed.
        """
        self.silent_since = self.loop.time()
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if (self._missing or self.conn.their_state is h11.SEND_BODY) and not self.is_working:
            self._start_clock()
        early, self._early = self._early, b""
        if early:
            self.data_received(early)

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
