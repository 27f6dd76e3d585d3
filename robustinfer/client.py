"""A typed client of `robust serve`: the answers of a server as the same objects `Predictor` returns.

    from robustinfer import Client
    with Client("http://127.0.0.1:8080", model="digits", token=token) as client:
        certificate = client.certify(image, n=10_000)

Needs httpx: pip install "robustinfer[client]".
"""

import asyncio
import io
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from .certificate import Certificate, Prediction
from .errors import ClientError, ImageFileError, SettingError
from .extras import require
from .settings import CertifySettings, PredictSettings

if TYPE_CHECKING:
    import httpx

__all__ = ["AsyncClient", "CertifySettings", "Client", "PredictSettings"]

Image = npt.ArrayLike | bytes | str | os.PathLike[str]

_LONGEST_PAUSE = 5.0
_DIED = "Worker died."  # TorchServe's words, with status 500 or 507, for requests a dying worker held


class _Conversation:
    """What both clients share: how a question looks on the wire, which answers are worth another try."""

    def __init__(self, url: str, *, model: str | None, token: str | None, retries: int) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise SettingError(f"Expected an address like http://127.0.0.1:8080, found {url!r}.")
        path = parts.path.rstrip("/")
        if "/predictions/" in path:
            path, _, rest = path.partition("/predictions/")
            model = model or rest.partition("/")[0]
        self.base = f"{parts.scheme}://{parts.netloc}{path}"
        self.path = f"/models/{model}/invoke" if model else "/invocations"
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.retries = retries

    def question(self, image: Image, mode: str, settings: PredictSettings | CertifySettings) -> dict[str, Any]:
        """The arguments of one POST."""
        given = {name: value for name, value in settings.items() if value is not None}
        return {"url": self.path, "params": {"mode": mode, **given}, "content": _content(image)}

    def pauses(self) -> Iterator[float]:
        """Seconds to wait before each further try: doubling, and spread so that clients do not come back together."""
        for attempt in range(self.retries):
            yield min(_LONGEST_PAUSE, 0.1 * 2**attempt) * random.uniform(0.5, 1.0)

    def worth_retrying(self, response: "httpx.Response") -> bool:
        """Whether the same question may find an answer later: the server is full, stopping, or lost a worker."""
        return response.status_code == 503 or (response.status_code in (500, 507) and _DIED in response.text)

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

    def unreachable(self, error: Exception) -> ClientError:
        """No answer at all."""
        return ClientError(f"The server {self.base} does not answer: {error or type(error).__name__}.")


class Client:
    """A connection to one model of a server; safe to share between threads.

    `url` is the server's address, or that of a model (`.../predictions/NAME`). Without `model`, the only model of the
    server is meant. A server that is full, stopping or restarting is asked again, `retries` times.
    """

    def __init__(
        self, url: str, *, model: str | None = None, token: str | None = None, timeout: float = 300.0, retries: int = 6
    ) -> None:
        require("httpx", extra="client", why="robustinfer.Client")
        import httpx

        self._talk = _Conversation(url, model=model, token=token, retries=retries)
        self._http = httpx.Client(base_url=self._talk.base, headers=self._talk.headers, timeout=timeout)

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
        return Certificate.from_json(self._ask("POST", self._talk.question(image, "certify", settings)))

    def predict(self, image: Image, **settings: Unpack[PredictSettings]) -> Prediction:
        """The smoothed label of one image. Settings as of `Predictor.predict`."""
        return Prediction.from_json(self._ask("POST", self._talk.question(image, "predict", settings)))

    def metadata(self) -> dict[str, Any]:
        """The model's card and digest, and what the server allows."""
        return dict(self._ask("GET", {"url": self._talk.path, "params": {"mode": "metadata"}}))

    def ready(self) -> bool:
        """Whether the model makes predictions now. Needs no token."""
        import httpx

        try:
            return self._http.get(self._talk.path, params={"mode": "health"}).status_code == 200
        except httpx.TransportError:
            return False

    def _ask(self, method: str, question: dict[str, Any]) -> Any:
        import httpx

        pauses = self._talk.pauses()
        while True:
            pause = next(pauses, None)
            try:
                response = self._http.request(method, **question)
            except httpx.TransportError as error:
                if pause is None or isinstance(error, httpx.TimeoutException):
                    raise self._talk.unreachable(error) from error
            else:
                if pause is None or not self._talk.worth_retrying(response):
                    return self._talk.document(response)
            time.sleep(pause)


class AsyncClient:
    """`Client` for asyncio: the same methods, as coroutines."""

    def __init__(
        self, url: str, *, model: str | None = None, token: str | None = None, timeout: float = 300.0, retries: int = 6
    ) -> None:
        require("httpx", extra="client", why="robustinfer.AsyncClient")
        import httpx

        self._talk = _Conversation(url, model=model, token=token, retries=retries)
        self._http = httpx.AsyncClient(base_url=self._talk.base, headers=self._talk.headers, timeout=timeout)

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
        return Certificate.from_json(await self._ask("POST", self._talk.question(image, "certify", settings)))

    async def predict(self, image: Image, **settings: Unpack[PredictSettings]) -> Prediction:
        """The smoothed label of one image. Settings as of `Predictor.predict`."""
        return Prediction.from_json(await self._ask("POST", self._talk.question(image, "predict", settings)))

    async def metadata(self) -> dict[str, Any]:
        """The model's card and digest, and what the server allows."""
        return dict(await self._ask("GET", {"url": self._talk.path, "params": {"mode": "metadata"}}))

    async def ready(self) -> bool:
        """Whether the model makes predictions now. Needs no token."""
        import httpx

        try:
            return (await self._http.get(self._talk.path, params={"mode": "health"})).status_code == 200
        except httpx.TransportError:
            return False

    async def _ask(self, method: str, question: dict[str, Any]) -> Any:
        import httpx

        pauses = self._talk.pauses()
        while True:
            pause = next(pauses, None)
            try:
                response = await self._http.request(method, **question)
            except httpx.TransportError as error:
                if pause is None or isinstance(error, httpx.TimeoutException):
                    raise self._talk.unreachable(error) from error
            else:
                if pause is None or not self._talk.worth_retrying(response):
                    return self._talk.document(response)
            await asyncio.sleep(pause)


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
