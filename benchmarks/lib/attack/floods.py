"""Floods: many connections, large bodies and costly pictures, of strangers and of greedy clients."""

import contextlib
import http.client
import io
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.lib.attack.bodies import NAME, json_body, npy, picture
from benchmarks.lib.attack.ledger import Observation
from benchmarks.lib.attack.target import TOKEN, Target, eventually

__all__ = ["costly_pictures", "greedy_clients", "memory_flood", "slow_clients", "strangers"]

_JSON = {"Content-Type": "application/json"}
_PREDICT = f"/models/{NAME}/invoke?mode=predict&n=200"
_IMAGE = npy(np.full((16, 16), 99, dtype=np.uint8))


def _head(length: int, *, token: bool) -> bytes:
    authorization = f"Authorization: Bearer {TOKEN}\r\n" if token else ""
    return f"POST /predictions/{NAME} HTTP/1.1\r\nHost: x\r\n{authorization}Content-Length: {length}\r\n\r\n".encode()


@contextlib.contextmanager
def _held(target: Target, count: int, head: bytes, body: bytes) -> Iterator[list[socket.socket]]:
    """Connections of another address that have sent the beginning of a request, and wait."""
    held: list[socket.socket] = []
    try:
        for _ in range(count):
            connection = socket.create_connection(target.address, timeout=30, source_address=("127.0.0.3", 0))
            connection.settimeout(5)
            held.append(connection)
            with contextlib.suppress(OSError):  # refused before all was sent
                connection.sendall(head + body)
        yield held
    finally:
        for connection in held:
            connection.close()


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(65_536):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def predict(target: Target, timeout: float = 30) -> int:
    """The status of a small prediction; 0 if there was no answer."""
    try:
        return target.ask(_PREDICT, _IMAGE, timeout=timeout)[0]
    except (OSError, http.client.HTTPException):
        return 0


def slow_clients(target: Target) -> Observation:
    """Two hundred connections with the token, each of which sends one byte of its body and no more."""
    with _held(target, 200, _head(100_000, token=True), b"{") as held:
        began = time.monotonic()
        status = predict(target)
        waited = time.monotonic() - began
        gone = eventually(lambda: not any(map(_is_open, held)), seconds=45)
        left = sum(map(_is_open, held))
    words = f"a prediction meanwhile: {status} after {waited:.1f} s; "
    words += f"all cut off after {gone:.0f} s" if gone is not None else f"{left} of 200 still open after 45 s"
    return Observation(status == 200 and gone is not None, words, {"left": left, "seconds": gone, "waited": waited})


def memory_flood(target: Target) -> Observation:
    """Strangers send all but one byte of 1 MiB, on 1,200 connections."""
    before = target.megabytes()
    body = b"\x89PNG" + bytes((1 << 20) - 5)
    with _held(target, 1200, _head((1 << 20), token=False), body):
        peak, status = target.megabytes(), predict(target)
    began = time.monotonic()
    eventually(lambda: target.process.poll() is not None or predict(target, 5) == 200, seconds=150)
    waited, code = time.monotonic() - began, target.process.poll()
    words = f"memory {before:.0f} MB, {peak:.0f} MB with the flood; a prediction meanwhile: {status or 'no answer'}; "
    after = f"the command ended with code {code}" if code is not None else "answered again"
    figures = {"before": before, "peak": peak, "status": status, "waited": waited, "code": code}
    words += f"{after} {waited:.0f} s after it" if status != 200 else "answered throughout"
    return Observation(status == 200 and peak < before + 300, words, figures)


def strangers(target: Target) -> Observation:
    """Eighty clients without a token ask without pause; a friend makes 33 predictions."""
    end = threading.Event()
    refused: Counter[int] = Counter()

    def stranger() -> None:
        while not end.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                refused[target.ask_plainly(f"/predictions/{NAME}", json_body(n=100_000), _JSON, timeout=30)[0]] += 1

    threads = [threading.Thread(target=stranger, daemon=True) for _ in range(80)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    statuses = Counter(predict(target) for _ in range(33))
    end.set()
    for thread in threads:
        thread.join(60)
    words = f"{statuses[200]} of 33 answered ({dict(statuses)}), strangers got {dict(refused)}"
    return Observation(statuses[200] == 33 and set(refused) <= {401, 429, 503}, words)


def greedy_clients(target: Target) -> Observation:
    """A hundred connections from one address ask for certificates; one from another address makes 22 predictions."""
    end = threading.Event()
    greedy: Counter[int] = Counter()

    def ask(source: str, path: str, body: bytes, timeout: float) -> int:
        connection = http.client.HTTPConnection(*target.address, timeout=timeout, source_address=(source, 0))
        try:
            connection.request("POST", path, body, {"Authorization": f"Bearer {TOKEN}"})
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def greed() -> None:
        while not end.is_set():
            status = ask("127.0.0.2", f"/predictions/{NAME}", json_body(n=5000), 120)
            greedy[status] += 1
            end.wait(0.0 if status == 200 else 0.05)

    threads = [threading.Thread(target=greed, daemon=True) for _ in range(100)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    waits, statuses = [], Counter[int]()
    for _ in range(22):
        began = time.monotonic()
        statuses[ask("127.0.0.1", _PREDICT, _IMAGE, 60)] += 1
        waits.append(time.monotonic() - began)
    end.set()
    for thread in threads:
        thread.join(150)
    words = (
        f"{statuses[200]} of 22 answered ({dict(statuses)}), at worst after {max(waits):.1f} s; greedy {dict(greedy)}"
    )
    return Observation(statuses[200] == 22, words, {"waits": [round(wait, 3) for wait in waits]})


def _many_scans() -> bytes:
    """A progressive JPEG of 5000 x 5000 pixels in one megabyte, whose last scan is repeated thousands of times."""
    pixels = np.zeros((5000, 5000), dtype=np.uint8)
    content = picture(pixels, "JPEG", progressive=True)
    last = content.rindex(b"\xff\xda")
    scan = content[last:-2]
    room = ((1 << 20) - len(content)) // len(scan)
    return content[:last] + scan * room + content[last:]


def _plain_png() -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (5000, 5000), (9, 99, 199)).save(buffer, "PNG")
    return buffer.getvalue()


def costly_pictures(target: Target) -> Observation:
    """A JPEG of thousands of scans, then sixteen pictures of 25 megapixels at once; a prediction comes right after."""
    limit = float(json.loads(target.ask(f"/predictions/{NAME}")[1])["limits"]["max_reading"])
    figures: dict[str, Any] = {"max_reading": limit}
    words, worst = [], 0.0
    for name, body, count in (("JPEG of many scans", _many_scans(), 1), ("PNG of 25 MP", _plain_png(), 16)):

        def ask(body: bytes) -> tuple[int, float]:
            began = time.monotonic()
            status, _ = target.ask(_PREDICT, body, timeout=300)
            return status, time.monotonic() - began

        with ThreadPoolExecutor(count) as pool:
            waiting = [pool.submit(ask, body) for _ in range(count)]
            time.sleep(0.1)
            began = time.monotonic()
            status = predict(target, 300)
            delay = time.monotonic() - began
            found = [future.result() for future in waiting]
        statuses = dict(Counter(status for status, _ in found))
        slowest = max(seconds for _, seconds in found)
        worst = max(worst, delay, slowest)
        figures[name] = {"statuses": statuses, "slowest": slowest, "next": delay, "status": status}
        words.append(f"{count} x {name}: {statuses}, the last after {slowest:.1f} s, a prediction after {delay:.1f} s")
    # Two batches may be under way when the prediction comes: that of the pictures, and the one they did not fit into.
    return Observation(worst <= 2 * limit + 1, f"max_reading {limit:g} s; " + "; ".join(words), figures)
