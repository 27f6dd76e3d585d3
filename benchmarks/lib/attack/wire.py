"""The wire: what strangers learn, and requests that a front end may misread."""

import contextlib
import http.client
import json
import re
import socket

from benchmarks.lib.attack.bodies import NAME, json_body
from benchmarks.lib.attack.ledger import Observation
from benchmarks.lib.attack.target import TOKEN, Target

__all__ = ["PARSING", "parsing", "said_to_strangers"]

_PATHS = [
    *("/", "/ping", "/models", "/api-description", "/metrics", "/predictions/none", "/openapi.json", "/docs", "/v2"),
    *(f"/predictions/{NAME}", f"/models/{NAME}/invoke", f"/v2/models/{NAME}/infer", f"/predictions/{NAME}/1/health"),
    *(f"/models/{NAME}/invoke?mode=health", f"/models/{NAME}/invoke?mode=metadata", f"/explanations/{NAME}"),
]


def exchange(target: Target, sent: bytes, *, timeout: float = 10) -> bytes:
    """Everything that comes back on one connection until it is closed, or quiet for some seconds."""
    received = b""
    with socket.create_connection(target.address, timeout=timeout) as connection, contextlib.suppress(OSError):
        connection.sendall(sent)
        while part := connection.recv(65_536):
            received += part
    return received


def single(target: Target, sent: bytes, *, timeout: float = 30) -> bytes:
    """One answer: status line, headers and body; nothing if the connection is closed without one."""
    with socket.create_connection(target.address, timeout=timeout) as connection:
        try:
            connection.sendall(sent)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            head = f"HTTP/1.1 {answer.status}\r\n{answer.headers.as_string()}".encode("utf-8", "replace")
            return head + b"\r\n\r\n" + answer.read()
        except (OSError, http.client.HTTPException):
            return b""


def _statuses(received: bytes) -> list[int]:
    return [int(code) for code in re.findall(rb"HTTP/1\.[01] (\d\d\d)", received)]


def said_to_strangers(target: Target) -> Observation:
    """Every address and method without a token, and with a header that claims another path."""
    telling = set()
    for path in _PATHS:
        for method in ("GET", "POST", "OPTIONS"):
            for header in ("", "url_path: health\r\n", "Authorization: Bearer wrong\r\n"):
                sent = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n{header}\r\n"
                answer = single(target, sent.encode())
                if re.search(rb"sha256|classes|\"digest\"|X-Model-Digest", answer, re.IGNORECASE):
                    telling.add(f"{method} {path} tells of the model")
                _, _, body = answer.partition(b"\r\n\r\n")
                if NAME.encode() in body or b"/predictions/{" in body:
                    telling.add(f"{method} {path} tells names")
    words = f"{len(_PATHS) * 9} requests; " + (", ".join(sorted(telling)) or "none tells of the model")
    return Observation(not telling, words)


def _head(method: str = "POST", **headers: str) -> str:
    own = {"Host": "x", "Authorization": f"Bearer {TOKEN}", **{k.replace("_", "-"): v for k, v in headers.items()}}
    return f"{method} /predictions/{NAME} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in own.items()) + "\r\n"


def _empty_boundary(target: Target) -> tuple[bool, str]:
    sent = (
        _head(Content_Type="multipart/form-data; boundary=", Content_Length="4", Connection="close").encode() + b"abcd"
    )
    found = _statuses(single(target, sent))
    return bool(found) and 400 <= found[0] < 500, f"an empty boundary {found}"


def _nameless_field(target: Target) -> tuple[bool, str]:
    body = b'--b\r\nContent-Disposition: form-data; name=""\r\n\r\n1\r\n--b--\r\n'
    head = _head(Content_Type="multipart/form-data; boundary=b", Content_Length=str(len(body)), Connection="close")
    found = _statuses(single(target, head.encode() + body))
    return bool(found) and 400 <= found[0] < 500, f"a form field without a name {found}"


def _preface(target: Target) -> tuple[bool, str]:
    found = _statuses(exchange(target, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
    return all(400 <= code < 500 or code == 505 for code in found), f"an HTTP/2 preface {found or 'closed'}"


def _two_lengths(target: Target) -> tuple[bool, str]:
    smuggled = f"GET /ping HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
    head = _head(Content_Length="5", Transfer_Encoding="chunked", Content_Type="application/json")
    body = json_body(n=200, mode="predict")
    chunked = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    found = _statuses(exchange(target, head.encode() + chunked + smuggled.encode()))
    return len(found) == 1 and found[0] == 400, f"Content-Length with Transfer-Encoding {found}"


def _pipelined(target: Target) -> tuple[bool, str]:
    """A long and two short requests on one connection, told apart by n: answers come in the order of the requests."""
    sent, wanted = b"", [20_000, 500, 600]
    for place, n in enumerate(wanted):
        body = json_body(n=n)
        close = {"Connection": "close"} if place == len(wanted) - 1 else {}
        head = _head(Content_Type="application/json", Content_Length=str(len(body)), **close)
        sent += head.encode() + body
    answers = exchange(target, sent, timeout=20)
    order = [int(n) for n in re.findall(rb'"n": ?(\d+)', answers)]
    return order == wanted or len(order) < 2, f"pipelined answers in the order {order}"


def _two_images(target: Target) -> tuple[bool, str]:
    part = b'--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\nx\r\n'
    body = part * 2 + b"--b--\r\n"
    head = _head(Content_Type="multipart/form-data; boundary=b", Content_Length=str(len(body)), Connection="close")
    answer = single(target, head.encode() + body)
    return b"repeated_field" in answer or b"two_images" in answer, f"two images in a form {_statuses(answer)}"


def _empty_post(target: Target) -> tuple[bool, str]:
    found = _statuses(single(target, _head(Content_Length="0", Connection="close").encode()))
    return bool(found) and 400 <= found[0] < 500, f"an empty POST {found}"


def _open_protocol(target: Target) -> tuple[bool, str]:
    status, body = target.ask(f"/v2/models/{NAME}/infer", b'{"inputs": [{"name"', {"Content-Type": "application/json"})
    text = json.loads(body).get("error")
    return status == 400 and isinstance(text, str), f"a broken infer request {status}, error is a {type(text).__name__}"


PARSING = (
    _empty_boundary,
    _nameless_field,
    _preface,
    _two_lengths,
    _pipelined,
    _two_images,
    _empty_post,
    _open_protocol,
)


def parsing(target: Target) -> Observation:
    """Each of the requests that a front end may misread."""
    found = [probe(target) for probe in PARSING]
    bad = [words for good, words in found if not good]
    right = [words for good, words in found if good]
    words = f"right: {'; '.join(right)}" + (f". Wrong: {'; '.join(bad)}" if bad else "")
    return Observation(not bad, words)
