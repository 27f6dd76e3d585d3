"""The exchange with a server: which requests a client sends, and what it makes of the replies.

Nothing here knows how bytes travel: `client.py` does, once with threads and once with asyncio.
"""

import dataclasses
import io
import json
import os
import random
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from .certificate import Certificate, Prediction
from .errors import ArgumentError, ClientError, ImageFileError
from .live import Snapshot
from .settings import CertifySettings, PredictSettings
from .signing import PublicKey, check_answer

if TYPE_CHECKING:
    import httpx

    Reply = httpx.Response | httpx.TransportError | None

__all__ = ["EventParser", "Exchange", "Image", "Key", "Reply", "Result", "Send", "Steps"]

Key = PublicKey | str | os.PathLike[str]
Image = npt.ArrayLike | bytes | str | os.PathLike[str]

Result = TypeVar("Result")

_LONGEST_PAUSE = 5.0
_DIED = "Worker died."  # TorchServe's words, with status 500 or 507, for requests a dying worker held


@dataclass(frozen=True)
class Send:
    """One HTTP request, as the arguments of httpx."""

    method: str
    url: str
    params: Mapping[str, Any]
    content: bytes | None = None


Steps = Generator[Send | float, "Reply", Result]
"""How a client works: it yields what to send, or how many seconds to wait, is given the reply, and returns a result."""


class Exchange:
    """All that a client knows, but for how bytes travel: which requests it sends, and what it makes of the replies."""

    def __init__(self, url: str, *, model: str | None, token: str | None, retries: int, key: Key | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ArgumentError(f"Expected an address like http://127.0.0.1:8080, found {url!r}.")
        path = parts.path.rstrip("/")
        if "/predictions/" in path:
            path, _, rest = path.partition("/predictions/")
            model = model or rest.partition("/")[0]
        self.base = f"{parts.scheme}://{parts.netloc}{path}"
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._path = f"/models/{model}/invoke" if model else "/invocations"
        self._retries = retries
        self._key = key if key is None or isinstance(key, PublicKey) else PublicKey.load(key)

    def certify(self, image: Image, settings: CertifySettings) -> Steps[Certificate]:
        """A certificate for one image."""
        return Certificate.from_json((yield from self._certified(image, settings)))

    def certify_signed(self, image: Image, settings: CertifySettings) -> Steps[dict[str, Any]]:
        """A certificate for one image as the server sent it, with its signature."""
        if self._key is None:
            raise ArgumentError("Give the public key of the server to check its signatures: Client(url, key=FILE).")
        return dict((yield from self._certified(image, settings)))

    def _certified(self, image: Image, settings: CertifySettings) -> Steps[Any]:
        """The document of a certificate, whose signature is checked if there is a key."""
        document = yield from self._answer(self._post(image, "certify", settings))
        self._certificate(document)
        return document

    def _certificate(self, document: Any) -> Certificate:
        """The certificate of a document, whose signature is checked if there is a key."""
        certificate = Certificate.from_json(document)
        if self._key is not None:
            check_answer(document, self._key)
        return certificate

    def predict(self, image: Image, settings: PredictSettings) -> Steps[Prediction]:
        """The smoothed label of one image."""
        return Prediction.from_json((yield from self._answer(self._post(image, "predict", settings))))

    def stream(self, image: Image, settings: CertifySettings) -> Send:
        """The request whose answer is a stream of events."""
        request = self._post(image, "certify", settings)
        return dataclasses.replace(request, params={**request.params, "stream": 1})

    def event(self, name: str, data: str) -> Snapshot | Certificate:
        """What an event of a stream says; the error, if it is one."""
        document = json.loads(data)
        if name == "votes":
            return Snapshot.from_json(document)
        if name == "answer":
            return self._certificate(document)
        message, code = _complaint(document)
        raise ClientError(f"The server {self.base} failed: {message or 'no reason'}", code=code)

    def metadata(self) -> Steps[dict[str, Any]]:
        """The model's card and digest, and what the server allows."""
        return dict((yield from self._answer(Send("GET", self._path, {"mode": "metadata"}))))

    def ready(self) -> Steps[bool]:
        """Whether the model answers now."""
        reply = yield Send("GET", self._path, {"mode": "health"})
        return getattr(reply, "status_code", None) == 200

    def _post(self, image: Image, mode: str, settings: PredictSettings | CertifySettings) -> Send:
        given = {name: value for name, value in settings.items() if value is not None}
        return Send("POST", self._path, {"mode": mode, **given}, _content(image))

    def _answer(self, request: Send) -> Steps[Any]:
        """The JSON of the answer, after as many tries as are worth it."""
        import httpx

        pauses = self._pauses()
        while True:
            pause = next(pauses, None)
            reply = yield request
            assert reply is not None
            if isinstance(reply, httpx.TransportError):
                if pause is None or isinstance(reply, httpx.TimeoutException):
                    raise self.unanswered(reply) from reply
            elif pause is None or not _worth_retrying(reply):
                return self.document(reply)
            yield pause

    def _pauses(self) -> Iterator[float]:
        """Seconds to wait before each further try: doubling, and spread so that clients do not come back together."""
        for attempt in range(self._retries):
            yield min(_LONGEST_PAUSE, 0.1 * 2**attempt) * random.uniform(0.5, 1.0)

    def unanswered(self, error: "httpx.TransportError") -> ClientError:
        """What to raise when no answer came: the connection failed, or took too long."""
        return ClientError(f"The server {self.base} does not answer: {str(error) or type(error).__name__}.")

    def document(self, response: "httpx.Response") -> Any:
        """The JSON of a good answer; the error in any other."""
        try:
            document = response.json()
        except ValueError:
            document = None
        if response.is_success and document is not None:
            return document
        message, code = _complaint(document)
        reason = message or response.reason_phrase or "no reason"
        raise ClientError(
            f"The server {self.base} answered {response.status_code}: {reason}",
            status=response.status_code,
            code=code,
        )


class EventParser:
    """Server-sent events from their lines: a name and one line of data each."""

    def __init__(self) -> None:
        self._name, self._data, self._last = "", "", ""

    def feed(self, line: str) -> Iterator[tuple[str, str]]:
        """The event that this line ends, if it ends one."""
        field, _, value = line.partition(":")
        if field == "event":
            self._name = value.strip()
        elif field == "data":
            self._data = value.strip()
        elif not line and self._name:
            yield self._name, self._data
            self._name, self._data, self._last = "", "", self._name

    def finish(self, server: str) -> None:
        """Refuse a stream that ended without an answer."""
        if self._last != "answer":
            raise ClientError(f"The server {server} ended the stream before its answer.")


def _worth_retrying(response: "httpx.Response") -> bool:
    """Whether the same request may find an answer later: the server is full, stopping, or lost a worker."""
    return response.status_code == 503 or (response.status_code in (500, 507) and _DIED in response.text)


def _content(image: Image) -> bytes:
    """The body: a file as it is, an array as npy."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, (str, os.PathLike)):
        try:
            return Path(image).read_bytes()
        except OSError as error:
            raise ImageFileError(f"Cannot read the image {image}: {error.strerror or error}.") from error
    array = np.asarray(image)
    if array.dtype == np.float64:
        array = array.astype(np.float32)  # what the model sees; half the bytes
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _complaint(document: Any) -> tuple[str | None, str | None]:
    """Message and code of an error: ours, or TorchServe's own."""
    if not isinstance(document, dict):
        return None, None
    error = document.get("error")
    if isinstance(error, dict):
        return error.get("message"), error.get("code")
    return document.get("message"), document.get("type")
