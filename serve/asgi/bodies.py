"""Bodies: read within a limit of bytes and of time, and only after the token; forms taken apart in memory."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from robustinfer.settings import short

from ..service.refusals import Refusal

__all__ = ["Bodies", "form_fields", "too_large"]

_WHOLE = 64
_MOST_PARTS = 32


def too_large(limit: int, found: int | None = None) -> Refusal:
    """The refusal of a body beyond the limit."""
    seen = f"; found {found}" if found is not None else ""
    return Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "limit_body", f"A body has at most {limit} bytes here{seen}.")


class Bodies:
    """The bodies that are being read, each of at most `limit` bytes, which must arrive within `seconds`.

    Together they have room for `_WHOLE` whole ones: beyond that, who has sent a part waits with the rest. A first piece
    is always taken (the connection has read it anyway), so that slow clients keep nobody from sending a small body.
    """

    def __init__(self, *, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._room = _WHOLE * limit
        self._has_room = asyncio.Event()
        self._has_room.set()

    @asynccontextmanager
    async def read(self, receive: Receive) -> AsyncIterator[bytes]:
        """The whole body, which takes room while inside.

        A refusal if it is too large or too slow, ClientDisconnect if its sender is gone.
        """
        body = bytearray()
        try:
            await self._fill(body, receive)
            yield bytes(body)
        finally:
            self._take(-len(body))

    async def _fill(self, body: bytearray, receive: Receive) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                while await self._extend(body, receive):
                    await self._has_room.wait()
        except TimeoutError:
            sentence = f"The body did not arrive within {self._seconds:g} s."
            raise Refusal(HTTPStatus.REQUEST_TIMEOUT, "too_slow", sentence) from None

    async def _extend(self, body: bytearray, receive: Receive) -> bool:
        """Append the next piece; whether there are more."""
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        body += piece
        self._take(len(piece))
        if len(body) > self._limit:
            raise too_large(self._limit)
        return bool(message.get("more_body", False))

    def _take(self, size: int) -> None:
        self._room -= size
        if self._room > 0:
            self._has_room.set()
        else:
            self._has_room.clear()


class _Form:
    """What the parser of a form calls: collects the content of each part under its name."""

    def __init__(self) -> None:
        self.fields: dict[str, bytes] = {}
        self.complete = False
        self._header, self._value, self._disposition = b"", b"", b""
        self._name, self._content = "", bytearray()

    def callbacks(self) -> dict[str, Any]:
        """The methods by the parser's names for them."""
        return {
            "on_part_begin": self.begin,
            "on_header_field": self.header_field,
            "on_header_value": self.header_value,
            "on_header_end": self.header_end,
            "on_headers_finished": self.headers_finished,
            "on_part_data": self.data,
            "on_part_end": self.end,
            "on_end": self.finish,
        }

    def begin(self) -> None:
        self._header, self._value, self._disposition = b"", b"", b""
        self._name, self._content = "", bytearray()
        if len(self.fields) >= _MOST_PARTS:
            raise Refusal.malformed("wrong_form", f"A form has at most {_MOST_PARTS} parts.")

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header, self._value = b"", b""

    def headers_finished(self) -> None:
        name = parse_options_header(self._disposition)[1].get(b"name", b"")
        self._name = name.decode("utf-8", "replace")
        if not self._name:
            raise Refusal.malformed("wrong_form", "Each part of a form has a name.")
        if self._name in self.fields:
            raise Refusal.malformed("repeated_field", f"The field {short(self._name)} appears twice in the form.")

    def data(self, data: bytes, start: int, end: int) -> None:
        self._content += data[start:end]

    def end(self) -> None:
        self.fields[self._name] = bytes(self._content)

    def finish(self) -> None:
        self.complete = True


def form_fields(body: bytes, content_type: str) -> Mapping[str, bytes]:
    """The parts of a form of type multipart/form-data, by name."""
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not boundary:
        raise Refusal.malformed("wrong_form", "The header Content-Type of a form names its boundary; here it does not.")
    form = _Form()
    try:
        parser = MultipartParser(boundary, form.callbacks())  # type: ignore[arg-type]
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise Refusal.malformed("wrong_form", "The body is not a form of type multipart/form-data.") from None
    if not form.complete:
        raise Refusal.malformed("wrong_form", "The form ends before its last boundary.")
    return form.fields
