"""One HTTP exchange, whatever server carries it: the request as it came in, and the answer that goes out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from robustinfer import Certificate, Prediction
from robustinfer.requests import Request

from .reading import Reading, speaks_v2

__all__ = ["Answer", "Exchange", "Incoming", "Result"]

Result = Certificate | Prediction

_ENDPOINTS = ("health", "metadata")
_RETRY_AFTER = "1"


@dataclass(frozen=True)
class Incoming:
    """A request as a server delivers it: fields, headers (names in lower case) and its id.

    `repeated` names fields that came more than once, and of which `data` has one value: such a request is refused.
    `v2`: it came to an address of the open inference protocol, so errors have the shape of that protocol.
    """

    data: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    request_id: str | None = None
    repeated: tuple[str, ...] = ()
    v2: bool = False

    @property
    def size(self) -> int:
        """The bytes of all fields."""
        return sum(len(value) for value in self.data.values() if isinstance(value, (bytes, bytearray)))

    @property
    def endpoint(self) -> str | None:
        """`health` or `metadata`, if one of them is asked for: by the query, or by an empty GET.

        For TorchServe, which has no routes: everything that concerns a model comes to its one handler.
        """
        mode = self.data.get("mode")
        word = bytes(mode).decode(errors="replace") if isinstance(mode, (bytes, bytearray)) else ""
        if word in _ENDPOINTS:
            return word
        fields = {name for name, value in self.data.items() if name != "body" or value} - {"model_name"}
        empty = not fields and "content-type" not in self.headers
        return "metadata" if empty and self.headers.get("content-length", "0") == "0" else None


@dataclass(frozen=True)
class Answer:
    """The answer to one request, and what is worth counting about it. `binary` are tensors that follow the text.

    The body is ASCII: JSON may hold halves of characters (a client's `id`, echoed), which no server can encode.
    """

    status: HTTPStatus
    body: str
    mode: str
    code: str | None = None
    results: tuple[Result, ...] = ()
    binary: bytes = b""

    @property
    def headers(self) -> dict[str, str]:
        """Headers that go with the status."""
        if self.status == HTTPStatus.UNAUTHORIZED:
            return {"WWW-Authenticate": "Bearer"}
        return {"Retry-After": _RETRY_AFTER} if self.status == HTTPStatus.SERVICE_UNAVAILABLE else {}


@dataclass
class Exchange:
    """A request on its way: what it asks for, once it has been read."""

    incoming: Incoming
    mode: str = "certify"
    reading: Reading | None = None
    requests: tuple[Request, ...] = ()
    answer: Answer | None = None

    @property
    def v2(self) -> bool:
        """Whether it speaks the open inference protocol."""
        if self.reading is not None:
            return self.reading.v2 is not None
        return self.incoming.v2 or speaks_v2(self.incoming.data)
