"""Decoding pictures within a limit of time: small ones in place, large ones in a process that can be given up.

How long a picture takes is not told by its size: a megabyte may hold 25 million pixels, and a decoder that has begun
cannot be interrupted. So whatever is more than a few milliseconds of work is done by a child process, which is killed
when its time is up; the engine's process goes on.
"""

import contextlib
import dataclasses
import json
import math
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from http import HTTPStatus
from typing import Any

import numpy as np
import numpy.typing as npt

from robustinfer import errors
from robustinfer.card import InputSpec
from robustinfer.images import decode_image, decoding_work

from .refusals import Refusal

__all__ = ["Decoder", "LargePicture", "main"]

Array = npt.NDArray[Any]

_LIGHT = 1 << 20  # pixels to pass over, about 20 ms: less than asking another process would be worth
_BUSY = "The server is busy with large pictures; ask again."
_HEAD = struct.Struct(">?Q")  # of a message: whether all went well, and the length of what follows


class LargePicture(Refusal):
    """A picture that takes a while to decode, in the hands of somebody who cannot wait for it."""

    def __init__(self) -> None:
        super().__init__(HTTPStatus.SERVICE_UNAVAILABLE, "busy_reading", _BUSY)


class Decoder:
    """Decodes pictures for a model with this input; at most `seconds` are spent on one.

    Safe to use from several threads; large pictures are decoded one at a time.
    """

    def __init__(self, spec: InputSpec, *, max_pixels: int, seconds: float) -> None:
        self._spec, self._max_pixels, self._seconds = spec, max_pixels, seconds
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def decode(self, content: bytes, *, until: float = math.inf, small_only: bool = False) -> Array:
        """The pixels. `until` is a moment of `time.monotonic`, when the caller's patience ends.

        422 for a picture that had all its seconds and was not done; 503 for one that others left no time for.
        `LargePicture` for one that is not decoded in place, if the caller wants `small_only`.
        """
        if decoding_work(content, self._spec, max_pixels=self._max_pixels) <= _LIGHT:
            return decode_image(content, self._spec, max_pixels=self._max_pixels)
        if small_only:
            raise LargePicture
        began = time.monotonic()
        end = min(until, began + self._seconds)
        if end <= began or not self._lock.acquire(timeout=end - began):
            raise self._no_time_left()
        try:
            return self._ask(content, end)
        except TimeoutError:
            self.close()  # the only way to interrupt a decoder
            if end - began < 0.9 * self._seconds:
                raise self._no_time_left() from None
            raise Refusal.unacceptable(
                "limit_reading",
                f"The picture takes longer than {self._seconds:g} s to decode: send it with fewer pixels.",
            ) from None
        except (OSError, EOFError):  # killed, by us in another thread or for want of memory
            self.close()
            raise Refusal.unavailable("decoder_lost", "The picture could not be decoded now; ask again.") from None
        finally:
            self._lock.release()

    def start(self) -> None:
        """Start the process now, if pictures for this model can be large: so that the first of them need not wait."""
        if self._spec.resize != "refuse" or self._spec.height * self._spec.width > _LIGHT:
            with self._lock:
                self._connection()

    def close(self) -> None:
        """End the process; the next large picture starts another one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._child is not None:
            self._child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(5)
            self._child = None

    def _no_time_left(self) -> Refusal:
        return Refusal.unavailable("busy_reading", _BUSY)

    def _ask(self, content: bytes, end: float) -> Array:
        connection = self._connection()
        _send(connection, True, content, end)
        good, answer = _receive(connection, end)
        if good:
            return np.frombuffer(answer, dtype=np.uint8).reshape(self._spec.shape)
        problem = json.loads(answer)
        if problem["error"] is None:
            raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "bad_image", "The image file is damaged.")
        raise getattr(errors, problem["error"])(problem["message"])

    def _connection(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair()
            order = {"spec": dataclasses.asdict(self._spec), "max_pixels": self._max_pixels, "seconds": self._seconds}
            with theirs:
                # -P: what lies in the working directory is not imported. -W: importing this room imports this module,
                # too, of which runpy warns; the child uses nothing of that copy, and the log of a server is JSON.
                quiet = ("-W", "ignore::RuntimeWarning:runpy")
                command = [sys.executable, "-P", *quiet, "-m", __name__, json.dumps(order)]
                self._child = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        return self._socket


def _send(connection: socket.socket, good: bool, content: bytes, end: float = math.inf) -> None:
    connection.settimeout(_left(end))
    connection.sendall(_HEAD.pack(good, len(content)))
    connection.sendall(content)


def _receive(connection: socket.socket, end: float = math.inf) -> tuple[bool, bytes]:
    good, length = _HEAD.unpack(_exactly(connection, _HEAD.size, end))
    return good, _exactly(connection, length, end)


def _exactly(connection: socket.socket, length: int, end: float) -> bytes:
    parts, missing = [], length
    while missing:
        connection.settimeout(_left(end))
        part = connection.recv(min(missing, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _left(end: float) -> float | None:
    if end == math.inf:
        return None
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def main() -> None:
    """The child: pictures come through its standard input, a socket, and pixels go back; it ends with its parent."""
    order = json.loads(sys.argv[1])
    spec, max_pixels = InputSpec(**order["spec"]), order["max_pixels"]
    with socket.socket(fileno=0) as connection, contextlib.suppress(EOFError, OSError):
        while True:
            _, content = _receive(connection)
            signal.alarm(math.ceil(order["seconds"]) + 1)  # ends this process even if its parent is gone
            _send(connection, *_outcome(content, spec, max_pixels))
            signal.alarm(0)


def _outcome(content: bytes, spec: InputSpec, max_pixels: int) -> tuple[bool, bytes]:
    try:
        return True, decode_image(content, spec, max_pixels=max_pixels).tobytes()
    except errors.InputError as error:
        return False, json.dumps({"error": type(error).__name__, "message": str(error)}).encode()
    except Exception:
        # Decoders of broken files raise whatever their last step happened to raise.
        return False, json.dumps({"error": None}).encode()


if __name__ == "__main__":
    main()
