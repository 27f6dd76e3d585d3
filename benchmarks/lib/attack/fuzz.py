"""Fuzz: requests that nobody would send, each made from its number alone, so that any of them can be made again.

Five kinds: damaged files; JSON documents with strange fields, types and numbers; forms; headers, paths, methods and
query strings; and bytes that are hardly HTTP. Answers may be 2xx, 4xx and 503; only for the last kind, a connection may
be closed without a word, and another version of HTTP refused with 505. An engine that replays certificates gets a sixth
kind: streams, replays of a certificate that it has just made, with strange fields, and the rest of the open protocol.
"""

import http.client
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from benchmarks.lib.attack.bodies import NAME, PIXELS, json_body, npy, picture
from benchmarks.lib.attack.target import TOKEN, Target

__all__ = ["KINDS", "Outcome", "ask", "certificate_to_replay", "run"]

SEED = 21
CLOSED = 0
_SMALL = np.full((16, 16), 99, dtype=np.uint8)
_FILES = [
    ("image/png", picture(_SMALL)),
    ("image/jpeg", picture(_SMALL, "JPEG")),
    ("application/octet-stream", npy(_SMALL)),
    ("application/json", json_body(n=200, mode="predict", alpha=0.01)),
]
_ADDRESSES = [f"/predictions/{NAME}", f"/models/{NAME}/invoke?n=200&mode=predict", f"/v2/models/{NAME}/infer"]
_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**64, -(2**70), 10**300, 0.5, -0.0, 1e308, 1e-320, "", "1", "NaN"),
    *("certify", "predict", "8-bit", "\u0000", "\ud800", "a" * 3000, [], [[]], {}, [None], [[1, 2], [3]], {"a": {}}),
]
_FIELDS = [
    *("n", "alpha", "radius", "tolerance", "deadline", "bound", "n0", "members", "sigma", "domain", "noise", "seed"),
    *("mode", "dtype", "image", "inputs", "parameters", "outputs", "id", "__class__", "body", ""),
]
_HEADERS = [
    *("url_path", "explain", "describe", "ts_stream_next", "X-Request-Id", "Expect", "Content-Encoding", "Accept"),
    *("Connection", "Upgrade", "Range", "Cookie", "X-Forwarded-For", "Host"),
]


@dataclass
class Attempt:
    """A request as bytes on the wire."""

    kind: str
    wire: bytes


@dataclass
class Outcome:
    """Statuses by kind, and examples of what is not allowed."""

    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, number: int, made: Attempt, status: int) -> None:
        with self.lock:
            self.statuses.setdefault(made.kind, Counter())[status] += 1
            if not _allowed(made.kind, status) and len(self.examples) < 20:
                example = {"number": number, "kind": made.kind, "status": status, "wire": repr(made.wire[:300])}
                self.examples.append(example)
                print(example, flush=True)

    @property
    def forbidden(self) -> int:
        """Answers that must not be."""
        return sum(
            count
            for kind, counts in self.statuses.items()
            for status, count in counts.items()
            if not _allowed(kind, status)
        )


def _allowed(kind: str, status: int) -> bool:
    return 200 <= status < 300 or 400 <= status < 500 or status == 503 or (kind == "bytes" and status in (CLOSED, 505))


def attempt(number: int, certificate: Mapping[str, Any] | None = None) -> Attempt:
    """The request of this number; with a certificate of `PIXELS[0]`, to an engine that can replay it."""
    chance = random.Random(f"{SEED} {number}")
    kinds, weights = dict(KINDS), [40, 30, 15, 10, 5]
    if certificate is not None:
        kinds[LIVING] = partial(_living, certificate=certificate)
        weights.append(20)
    kind = chance.choices(list(kinds), weights=weights)[0]
    return Attempt(kind, kinds[kind](chance))


def wire(
    path: str, body: bytes, headers: dict[str, str] | None = None, *, method: str = "POST", length: bool = True
) -> bytes:
    """The bytes of a request."""
    own = {"Host": "x", "Authorization": f"Bearer {TOKEN}", **(headers or {})}
    if length:
        own["Content-Length"] = str(len(body))
    head = "".join(f"{name}: {value}\r\n" for name, value in own.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("utf-8", "surrogatepass") + body


def _damaged(chance: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.randrange(7)):
        place = chance.randrange(len(changed) + 1)
        changed[place : place + chance.randrange(9)] = chance.randbytes(chance.randrange(9))
    return bytes(changed[: chance.randrange(len(changed) + 1)] if chance.random() < 0.15 else changed)


def _file(chance: random.Random) -> bytes:
    kind, body = chance.choice(_FILES)
    kind = chance.choice([kind, kind, "application/json", "text/plain", "", "application/x-www-form-urlencoded"])
    return wire(chance.choice(_ADDRESSES), _damaged(chance, body), {"Content-Type": kind} if kind else {})


def _document(chance: random.Random) -> bytes:
    pixels = PIXELS[chance.randrange(len(PIXELS))].tolist()
    tensor = {"name": "image", "shape": [1, 16, 16], "datatype": "UINT8", "data": np.ravel(pixels).tolist()}
    document: dict[str, Any] = {"image": pixels, "n": 200, "mode": "predict"}
    if chance.random() < 0.3:
        document = {"inputs": [tensor], "parameters": {"n": 200}}
        place = chance.choice([document, document["parameters"], tensor])
        place[chance.choice([*_FIELDS, "shape", "datatype", "data"])] = chance.choice(_VALUES)
    for _ in range(chance.randrange(3)):
        document[chance.choice(_FIELDS)] = chance.choice(_VALUES)
    if chance.random() < 0.1 and isinstance(document.get("image"), list):
        document["image"] = _mixed(chance, document["image"])
    text = json.dumps(document)
    if chance.random() < 0.1:
        text = text.replace("200", chance.choice(["NaN", "Infinity", "1e999", "9" * 500, "0x1", "01"]), 1)
    if chance.random() < 0.05:
        text = '{"image": ' + chance.choice(["[", '{"a":']) * chance.choice([10, 999, 50_000])
    return wire(chance.choice(_ADDRESSES), text.encode(), {"Content-Type": "application/json"})


def _mixed(chance: random.Random, rows: list[Any]) -> Any:
    """Rows of numbers with something else among them."""
    mixed = [list(row) if isinstance(row, list) else row for row in rows]
    row = chance.choice(mixed) if mixed else None
    if isinstance(row, list):
        row[:1] = [chance.choice(_VALUES)]
    return mixed


def _form(chance: random.Random) -> bytes:
    boundary = chance.choice(["b", "b" * 70, "--", "a b", "\u00e9"])
    parts = b""
    for _ in range(chance.randrange(4)):
        name = chance.choice(["image", "data", "file", "n", "mode", "body", "x", "é", "a" * 2000, "__proto__"])
        file = chance.choice(["", '; filename="a.png"', '; filename="../../a"'])
        content = chance.choice([_FILES[0][1], b"200", b"", chance.randbytes(20), _FILES[3][1]])
        parts += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + content
        parts += b"\r\n"
    end = chance.choice([f"--{boundary}--\r\n".encode(), b"", b"--wrong--\r\n"])
    kind = f'multipart/form-data; boundary="{boundary}"'
    return wire(chance.choice(_ADDRESSES), parts + end, {"Content-Type": kind})


def _envelope(chance: random.Random) -> bytes:
    name, value = chance.choice(_HEADERS), chance.choice(["True", "../../x", "\u00e9", "{}", "chunked", "x" * 3000, ""])
    path = chance.choice([
        *_ADDRESSES, "/", "/ping", "/models", "/predictions/none", f"/predictions/{NAME}/9", "/predictions/%2e%2e/x",
        "/wf-predict/x", "/invocations", "/%00", "/v2/models/none/infer", "/metrics", "//", "/a" * 500,
        f"/models/{NAME}/invoke?{'&'.join(f'{field}={chance.choice(_VALUES)!s:.40}' for field in _FIELDS[:4])}",
    ])  # fmt: skip
    method = chance.choice(["POST", "POST", "GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE"])
    token = chance.choice([{}, {"Authorization": ""}, {"Authorization": "Bearer é"}, {"Authorization": "Basic eDp4"}])
    body = json_body(n=200, mode="predict") if method in ("POST", "PUT") else b""
    return wire(path.replace(" ", "+"), body, {name: value, **token}, method=method)


def _bytes(chance: random.Random) -> bytes:
    good = wire(_ADDRESSES[0], json_body(n=200, mode="predict"))
    return chance.choice([
        chance.randbytes(chance.randrange(1, 200)),
        _damaged(chance, good[:200]) + b"\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n", b"GET\r\n\r\n", b"\r\n" * 50, b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 9999999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /ping HTTP/1.1\r\n" + b"a: b\r\n" * 3000 + b"\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(100),
    ])  # fmt: skip


def _living(chance: random.Random, certificate: Mapping[str, Any]) -> bytes:
    """What only a living engine has: votes as events, replays, the whole open protocol."""
    what = chance.randrange(3)
    if what == 0:
        kind, body = chance.choice(_FILES)
        stream = chance.choice(["1", "1", "1", "true", "0", "2", "", "\u00e9", "1&stream=1"])
        field = f"{chance.choice(_FIELDS)}={chance.choice(_VALUES)!s:.40}" if chance.random() < 0.5 else "n=200"
        path = f"/predictions/{NAME}?stream={stream}&{field}".replace(" ", "+")
        return wire(path, _damaged(chance, body) if chance.random() < 0.3 else body, {"Content-Type": kind})
    if what == 1:
        claimed = dict(certificate)
        for _ in range(chance.randrange(3)):
            claimed[chance.choice([*certificate, *_FIELDS])] = chance.choice(_VALUES)
        if chance.random() < 0.2:
            del claimed[chance.choice(list(claimed))]
        document = {"certificate": claimed, "image": PIXELS[chance.randrange(8) // 7].tolist()}
        if chance.random() < 0.2:
            document[chance.choice(_FIELDS)] = chance.choice(_VALUES)
        body = json.dumps(document).encode()
        body = _damaged(chance, body) if chance.random() < 0.2 else body
        return wire(f"/models/{NAME}/verify", body, {"Content-Type": "application/json"})
    model = chance.choice([NAME, NAME, NAME, "none", "%00", "..", "a" * 300])
    path = chance.choice([
        "/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/v2/health", "/models", "/openapi.json",
        f"/v2/models/{model}", f"/v2/models/{model}/ready", f"/v2/models/{model}/versions/1",
        f"/v2/models/{model}/versions/9/ready", f"/v2/models/{model}/infer", f"/models/{model}/verify",
    ])  # fmt: skip
    method = chance.choice(["GET", "GET", "GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE"])
    headers = {"Inference-Header-Content-Length": chance.choice(["0", "9", "-1", "9" * 30, "\u00b2"])}
    return wire(path, json_body(n=200) if method in ("POST", "PUT") else b"", headers, method=method)


LIVING = "streams, replays, open protocol"
KINDS: dict[str, Callable[[random.Random], bytes]] = {
    "damaged files": _file,
    "strange JSON": _document,
    "forms": _form,
    "headers, paths, methods": _envelope,
    "bytes": _bytes,
}


def ask(target: Target, asked: Attempt, *, timeout: float = 60) -> int:
    """The status of the answer, or `CLOSED`."""
    method = asked.wire.split(b" ", 1)[0].decode("latin-1")
    with socket.create_connection(target.address, timeout=timeout) as connection:
        try:
            connection.sendall(asked.wire)
            if asked.kind == "bytes":
                connection.shutdown(socket.SHUT_WR)  # nobody waits for the rest of what was never meant
            answer = http.client.HTTPResponse(connection, method=method)
            answer.begin()
            answer.read()
            return answer.status
        except (OSError, http.client.HTTPException, ValueError):
            return CLOSED


def certificate_to_replay(target: Target) -> Mapping[str, Any] | None:
    """A certificate of `PIXELS[0]` that the server has made and replays; None if it does not replay any."""
    headers = {"Content-Type": "application/json"}
    made = json.loads(target.ask(f"/predictions/{NAME}", json_body(n=200), headers)[1])
    body = json.dumps({"certificate": made, "image": PIXELS[0].tolist()}).encode()
    status, answer = target.ask(f"/models/{NAME}/verify", body, headers)
    return made if status == 200 and json.loads(answer).get("ok") is True else None


def run(
    target: Target, outcome: Outcome, numbers: range, *, clients: int, certificate: Mapping[str, Any] | None
) -> None:
    """Send the requests of these numbers, by several clients at once."""
    waiting = iter(numbers)
    lock = threading.Lock()

    def client() -> None:
        while True:
            with lock:
                number = next(waiting, None)
            if number is None:
                return
            asked = attempt(number, certificate)
            status = ask(target, asked)
            while status == 503:  # full, not refused: nobody has looked at the request
                outcome.add(number, asked, 503)
                status = ask(target, asked)
            outcome.add(number, asked, status)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
