"""Plain requests, which nearly all are that ask a model something: read and answered without h11.

h11 takes a third of a millisecond of processor time for each. What is plain is drawn so narrowly that nothing here has
to decide what an unusual request means: h11 reads it the same way, and reads or refuses everything else.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, RequestResponseCycle

__all__ = ["HANG_UP", "PlainCycle", "PlainRequest", "plain_request"]

Headers = list[tuple[bytes, bytes]]

_HEAD = re.compile(
    rb"(POST|PUT) (/[!-~]*) HTTP/1\.1\r\n"  # neither HEAD nor CONNECT, and the address is a path
    rb"((?:[-!#$%&'*+.^`|~\w]+:[\t -~]*\r\n)+)"  # printable ASCII, and no line goes on in the next one
    rb"\r\n"
)
HANG_UP = "robust.hang_up"
"""The extension of ASGI by which the application learns that a client is gone without a task that waits for it."""

_FRAMING = {b"transfer-encoding", b"expect"}
_CLOSE = (b"connection", b"close")


@dataclass(frozen=True)
class PlainRequest:
    """The head of a plain request, the length of its body, and where that begins."""

    method: str
    path: bytes
    query: bytes
    headers: Headers
    length: int
    begin: int


def plain_request(data: bytes) -> PlainRequest | None:
    """The request at the beginning of the data, if its whole head is there and nothing in it is unusual.

    No header appears twice; its only length is a Content-Length, of a body that needs not be read piece by piece.
    """
    head = _HEAD.match(data)
    if head is None:
        return None
    method, target, lines = head.groups()
    headers = []
    for line in lines[:-2].split(b"\r\n"):
        name, _, value = line.partition(b":")
        headers.append((name.lower(), value.strip(b" \t")))
    named = dict(headers)
    length = named.get(b"content-length", b"")
    if len(named) < len(headers) or b"host" not in named or not _FRAMING.isdisjoint(named):
        return None
    if named.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    if not length.isdigit() or len(length) > 9 or int(length) > HIGH_WATER_LIMIT:
        return None
    path, _, query = target.partition(b"?")
    return PlainRequest(method.decode(), path, query, headers, int(length), head.end())


class PlainCycle(RequestResponseCycle):
    """The answer to a plain request, in the bytes that h11 would write; all else is as uvicorn has it."""

    _chunked = False
    _leave: Callable[[], object] | None = None

    def when_gone(self, leave: Callable[[], object]) -> Callable[[], None]:
        """Have `leave` called, not before the next turn of the event loop, when the client is gone.

        What is returned calls that off.
        """
        self._leave = leave
        if self.disconnected:
            asyncio.get_running_loop().call_soon(self.hang_up)
        return self._forget

    def hang_up(self) -> None:
        """The client is gone."""
        if self._leave is not None:
            self._leave()

    def _forget(self) -> None:
        self._leave = None

    async def send(self, message: Any) -> None:
        """Write the head, or a piece of the body."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        expected = "http.response.body" if self.response_started else "http.response.start"
        if self.response_complete or message["type"] != expected:
            raise RuntimeError(f"The application sent {message['type']} out of turn.")
        if self.response_started:
            self._write_body(message.get("body", b""), more=message.get("more_body", False))
        else:
            self._write_head(message["status"], [*self.default_headers, *message.get("headers", ())])
            self.response_started = True

    def _write_head(self, status: int, headers: Headers) -> None:
        if _CLOSE in headers:
            self.keep_alive = False
        self._chunked = all(name != b"content-length" for name, _ in headers)
        if self._chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        lines = [b"%b: %b\r\n" % header for header in headers]
        head = b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, STATUS_PHRASES[status], b"".join(lines))
        if head.count(b"\n") != len(lines) + 2 or head.count(b"\r") != len(lines) + 2:
            raise RuntimeError("A header of the answer has more than one line.")
        self.transport.write(head)

    def _write_body(self, body: bytes, *, more: bool) -> None:
        if self._chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
        self.transport.write(body)
        if not more:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()
