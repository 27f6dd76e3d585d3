"""Requests that a front end may misread, as bytes, with the answers that are right: for every engine and for the proxy.

A case is sent on one connection. `statuses` are those that the first answer may have (None: closed without a word);
with `alone` no second answer may come before the connection is closed. TorchServe's front end gets `FLAWS` wrong, as
docs/security.md says; no setting mends them, the proxy does, but for one.
"""

import contextlib
import json
import re
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..waiting import PATIENCE
from .conftest import TOKEN

__all__ = ["BEHIND_THE_PROXY", "CASES", "FLAWS", "Case", "misread"]

_PIXELS = [[99] * 8] * 8
_GOOD = json.dumps({"image": _PIXELS, "n": 500}).encode()


@dataclass(frozen=True)
class Case:
    """One connection: what is sent, and which answers are right."""

    sent: bytes
    statuses: tuple[int | None, ...]
    alone: bool = False
    contains: str = ""


def _request(body: bytes, address: str = "/predictions/tiny", /, **headers: str) -> bytes:
    own = {"Host": "x", "Authorization": f"Bearer {TOKEN}", "Content-Length": str(len(body)), "Connection": "close"}
    own |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in own.items() if value)
    return f"POST {address} HTTP/1.1\r\n{head}\r\n".encode() + body


def _form(*parts: str, boundary: str = "b") -> bytes:
    body = "".join(f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n1\r\n' for name in parts) + "--b--\r\n"
    return _request(body.encode(), Content_Type=f"multipart/form-data; boundary={boundary}")


_CHUNKED = f"{len(_GOOD):x}\r\n".encode() + _GOOD + b"\r\n0\r\n\r\n"
_SECOND = f"GET /ping HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n".encode()
_BOTH = _request(b"", Content_Length="5", Transfer_Encoding="chunked", Connection="", Content_Type="application/json")

CASES = {
    "an empty boundary": Case(_form("n", boundary=""), (400, 415, 422)),
    "no boundary": Case(_request(b"x", Content_Type="multipart/form-data"), (400, 415, 422)),
    "a field without a name": Case(_form(""), (400, 415, 422)),
    "two images": Case(_form("image", "image"), (400,), contains="repeated_field"),
    "a broken HTML form": Case(_request(b"\xff%zz=&%", Content_Type="application/x-www-form-urlencoded"), (400, 415)),
    "an HTTP/2 preface": Case(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 405, 505, None)),
    "two lengths": Case(_BOTH + _CHUNKED + _SECOND, (400,), alone=True),
    "a POST without a body": Case(_request(b""), (400, 411, 415)),
    "half a character": Case(_request(b'{"image": [[9]], "\\ud800": 1}', Content_Type="application/json"), (400,)),
    "a broken infer request": Case(_request(b'{"inputs": [', "/v2/models/tiny/infer"), (400,), contains='{"error": "'),
}

FLAWS = {
    *("an empty boundary", "a field without a name", "a broken HTML form", "an HTTP/2 preface"),
    *("two lengths", "a POST without a body"),
}
"""What TorchServe itself misreads."""

BEHIND_THE_PROXY = {"a field without a name"}
"""What it misreads even behind nginx, which does not look into bodies."""


def misread(url: str, case: Case) -> str | None:
    """What is wrong with the answer, or None."""
    parts = urlsplit(url)
    received = b""
    found: list[int] = []
    connection = socket.create_connection((parts.hostname or "", parts.port or 80), timeout=PATIENCE)
    with connection, contextlib.suppress(OSError):
        connection.sendall(case.sent)
        while (len(found) < 1 + case.alone or case.contains.encode() not in received) and (
            part := connection.recv(65_536)
        ):
            received += part
            found = [int(code) for code in re.findall(rb"HTTP/1\.[01] (\d\d\d)", received)]
    if (found[0] if found else None) not in case.statuses or len(found) > 1:
        return f"{found} instead of {case.statuses}"
    if case.contains and case.contains not in received.decode(errors="replace"):
        return f"{received!r} does not contain {case.contains!r}"
    return None
