"""A typed client of `robust serve`: the answers of a server as the same objects `Predictor` returns.

    from robustinfer import Client
    with Client("http://127.0.0.1:8080", model="digits", token=token) as client:
        certificate = client.certify(image, n=10_000)

`Client(url, key=FILE)` accepts certificates only if they are signed by that public key.

Needs httpx: pip install "robustinfer[client]".
"""

import asyncio
import dataclasses
import io
import json
import os
import random
import time
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from .certificate import Certificate, Prediction
from .errors import ArgumentError, ClientError, ImageFileError
from .extras import needed
from .live import Snapshot
from .settings import CertifySettings, PredictSettings
from .signing import PublicKey, check_answer

if TYPE_CHECKING:
    import httpx

    _Reply = httpx.Response | httpx.TransportError | None

__all__ = ["AsyncClient", "CertifySettings", "Client", "PredictSettings"]

Key = PublicKey | str | os.PathLike[str]
Image = npt.ArrayLike | bytes | str | os.PathLike[str]

_Result = TypeVar("_Result")

_LONGEST_PAUSE = 5.0
_DIED = "Worker died."  # TorchServe's words, with status 500 or 507, for requests a dying worker held


@dataclass(frozen=True)
class _Send:
    """One HTTP request, as the arguments of httpx."""

    method: str
    url: str
    params: Mapping[str, Any]
    content: bytes | None = None


_Steps = Generator[_Send | float, "_Reply", _Result]
"""How a client works: it yields what to send, or how many seconds to wait, is given the reply, and returns a result."""


class _Core:
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

    def certify(self, image: Image, settings: CertifySettings) -> _Steps[Certificate]:
        """A certificate for one image."""
        return Certificate.from_json((yield from self._certified(image, settings)))

    def certify_signed(self, image: Image, settings: CertifySettings) -> _Steps[dict[str, Any]]:
        """A certificate for one image as the server sent it, with its signature."""
        if self._key is None:
            raise ArgumentError("Give the public key of the server to check its signatures: Client(url, key=FILE).")
        return dict((yield from self._certified(image, settings)))

    def _certified(self, image: Image, settings: CertifySettings) -> _Steps[Any]:
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

    def predict(self, image: Image, settings: PredictSettings) -> _Steps[Prediction]:
        """The smoothed label of one image."""
        return Prediction.from_json((yield from self._answer(self._post(image, "predict", settings))))

    def stream(self, image: Image, settings: CertifySettings) -> _Send:
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

    def metadata(self) -> _Steps[dict[str, Any]]:
        """The model's card and digest, and what the server allows."""
        return dict((yield from self._answer(_Send("GET", self._path, {"mode": "metadata"}))))

    def ready(self) -> _Steps[bool]:
        """Whether the model answers now."""
        reply = yield _Send("GET", self._path, {"mode": "health"})
        return getattr(reply, "status_code", None) == 200

    def _post(self, image: Image, mode: str, settings: PredictSettings | CertifySettings) -> _Send:
        given = {name: value for name, value in settings.items() if value is not None}
        return _Send("POST", self._path, {"mode": mode, **given}, _content(image))

    def _answer(self, request: _Send) -> _Steps[Any]:
        """The JSON of the answer, after as many tries as are worth it."""
        import httpx

        pauses = self._pauses()
        while True:
            pause = next(pauses, None)
            reply = yield request
            assert reply is not None
            if isinstance(reply, httpx.TransportError):
                if pause is None or isinstance(reply, httpx.TimeoutException):
                    reason = str(reply) or type(reply).__name__
                    raise ClientError(f"The server {self.base} does not answer: {reason}.") from reply
            elif pause is None or not _worth_retrying(reply):
                return self.document(reply)
            yield pause

    def _pauses(self) -> Iterator[float]:
        """Seconds to wait before each further try: doubling, and spread so that clients do not come back together."""
        for attempt in range(self._retries):
            yield min(_LONGEST_PAUSE, 0.1 * 2**attempt) * random.uniform(0.5, 1.0)

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


class Client:
    """A connection to one model of a server; safe to share between threads.

    `url` is the server's address, or that of a model (`.../predictions/NAME`). Without `model`, the only model of the
    server is meant. A server that is full, stopping or restarting is asked again, `retries` times. With `key`, a public
    key or its file, every certificate must be signed by it, else SignatureError is raised.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        token: str | None = None,
        timeout: float = 300.0,
        retries: int = 6,
        key: Key | None = None,
    ) -> None:
        with needed(extra="client", why="robustinfer.Client"):
            import httpx

        self._core = _Core(url, model=model, token=token, retries=retries, key=key)
        self._http = httpx.Client(base_url=self._core.base, headers=self._core.headers, timeout=timeout)

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def certify(self, image: Image, **settings: Unpack[CertifySettings]) -> Certificate:
        """A certificate for one image: an array, or a file's path or bytes. Settings as of `Predictor.certify`."""
        return self._run(self._core.certify(image, settings))

    def certify_signed(self, image: Image, **settings: Unpack[CertifySettings]) -> dict[str, Any]:
        """`certify`, but the JSON object as the server sent it: saved, `robust verify --key` checks it again."""
        return self._run(self._core.certify_signed(image, settings))

    def predict(self, image: Image, **settings: Unpack[PredictSettings]) -> Prediction:
        """The smoothed label of one image. Settings as of `Predictor.predict`."""
        return self._run(self._core.predict(image, settings))

    def stream(self, image: Image, **settings: Unpack[CertifySettings]) -> Iterator[Snapshot | Certificate]:
        """`certify` by a server of the engine asgi, with its votes on the way: snapshots, and the certificate at last.

        With `radius` or `deadline` a snapshot's radius is proven at its moment. Leaving the loop cancels the work.
        """
        request = self._core.stream(image, settings)
        with self._opened(request) as response:
            parser = _EventParser()
            for line in response.iter_lines():
                for event in parser.feed(line):
                    yield self._core.event(*event)
            parser.finish(self._core.base)

    @contextmanager
    def _opened(self, request: _Send) -> "Iterator[httpx.Response]":
        import httpx

        try:
            with self._http.stream(
                request.method, request.url, params=request.params, content=request.content
            ) as response:
                if not response.is_success:
                    response.read()
                    self._core.document(response)
                yield response
        except httpx.TransportError as error:
            raise ClientError(f"The server {self._core.base} does not answer: {error}.") from error

    def metadata(self) -> dict[str, Any]:
        """The model's card and digest, and what the server allows."""
        return self._run(self._core.metadata())

    def ready(self) -> bool:
        """Whether the model makes predictions now. Needs no token."""
        return self._run(self._core.ready())

    def _run(self, steps: _Steps[_Result]) -> _Result:
        reply: _Reply = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                result: _Result = end.value
                return result
            if isinstance(step, _Send):
                reply = self._send(step)
            else:
                time.sleep(step)

    def _send(self, request: _Send) -> "_Reply":
        import httpx

        try:
            return self._http.request(request.method, request.url, params=request.params, content=request.content)
        except httpx.TransportError as error:
            return error


class AsyncClient:
    """`Client` for asyncio: the same methods, as coroutines."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        token: str | None = None,
        timeout: float = 300.0,
        retries: int = 6,
        key: Key | None = None,
    ) -> None:
        with needed(extra="client", why="robustinfer.AsyncClient"):
            import httpx

        self._core = _Core(url, model=model, token=token, retries=retries, key=key)
        self._http = httpx.AsyncClient(base_url=self._core.base, headers=self._core.headers, timeout=timeout)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        await self._http.aclose()

    async def certify(self, image: Image, **settings: Unpack[CertifySettings]) -> Certificate:
        """A certificate for one image: an array, or a file's path or bytes. Settings as of `Predictor.certify`."""
        return await self._run(self._core.certify(image, settings))

    async def certify_signed(self, image: Image, **settings: Unpack[CertifySettings]) -> dict[str, Any]:
        """`certify`, but the JSON object as the server sent it: saved, `robust verify --key` checks it again."""
        return await self._run(self._core.certify_signed(image, settings))

    async def predict(self, image: Image, **settings: Unpack[PredictSettings]) -> Prediction:
        """The smoothed label of one image. Settings as of `Predictor.predict`."""
        return await self._run(self._core.predict(image, settings))

    async def stream(self, image: Image, **settings: Unpack[CertifySettings]) -> AsyncIterator[Snapshot | Certificate]:
        """`Client.stream`, as an asynchronous iterator."""
        import httpx

        request = self._core.stream(image, settings)
        try:
            async with self._http.stream(
                request.method, request.url, params=request.params, content=request.content
            ) as response:
                if not response.is_success:
                    await response.aread()
                    self._core.document(response)
                parser = _EventParser()
                async for line in response.aiter_lines():
                    for event in parser.feed(line):
                        yield self._core.event(*event)
                parser.finish(self._core.base)
        except httpx.TransportError as error:
            raise ClientError(f"The server {self._core.base} does not answer: {error}.") from error

    async def metadata(self) -> dict[str, Any]:
        """The model's card and digest, and what the server allows."""
        return await self._run(self._core.metadata())

    async def ready(self) -> bool:
        """Whether the model makes predictions now. Needs no token."""
        return await self._run(self._core.ready())

    async def _run(self, steps: _Steps[_Result]) -> _Result:
        reply: _Reply = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                result: _Result = end.value
                return result
            if isinstance(step, _Send):
                reply = await self._send(step)
            else:
                await asyncio.sleep(step)

    async def _send(self, request: _Send) -> "_Reply":
        import httpx

        try:
            return await self._http.request(request.method, request.url, params=request.params, content=request.content)
        except httpx.TransportError as error:
            return error


class _EventParser:
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
