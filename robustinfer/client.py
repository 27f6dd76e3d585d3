"""A typed client of `robust serve`: the answers of a server as the same objects `Predictor` returns.

    from robustinfer import Client
    with Client("http://127.0.0.1:8080", model="digits", token=token) as client:
        certificate = client.certify(image, n=10_000)

`Client(url, key=FILE)` accepts certificates only if they are signed by that public key.

Needs httpx: pip install "robustinfer[client]".
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from .certificate import Certificate, Prediction
from .exchange import EventParser, Exchange, Image, Key, Result, Send, Steps
from .extras import needed
from .live import Snapshot
from .settings import CertifySettings, PredictSettings

if TYPE_CHECKING:
    import httpx

    from .exchange import Reply

__all__ = ["AsyncClient", "CertifySettings", "Client", "PredictSettings"]


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

        self._exchange = Exchange(url, model=model, token=token, retries=retries, key=key)
        self._http = httpx.Client(base_url=self._exchange.base, headers=self._exchange.headers, timeout=timeout)

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
        return self._run(self._exchange.certify(image, settings))

    def certify_signed(self, image: Image, **settings: Unpack[CertifySettings]) -> dict[str, Any]:
        """`certify`, but the JSON object as the server sent it: saved, `robust verify --key` checks it again."""
        return self._run(self._exchange.certify_signed(image, settings))

    def predict(self, image: Image, **settings: Unpack[PredictSettings]) -> Prediction:
        """The smoothed label of one image. Settings as of `Predictor.predict`."""
        return self._run(self._exchange.predict(image, settings))

    def stream(self, image: Image, **settings: Unpack[CertifySettings]) -> Iterator[Snapshot | Certificate]:
        """`certify` with votes as they come in (asgi engine): snapshots, and finally the certificate.

        With `radius` or `deadline` a snapshot's radius is proven at its moment. Leaving the loop cancels the work.
        """
        request = self._exchange.stream(image, settings)
        with self._opened(request) as response:
            parser = EventParser()
            for line in response.iter_lines():
                for event in parser.feed(line):
                    yield self._exchange.event(*event)
            parser.finish(self._exchange.base)

    @contextmanager
    def _opened(self, request: Send) -> "Iterator[httpx.Response]":
        import httpx

        try:
            with self._http.stream(
                request.method, request.url, params=request.params, content=request.content
            ) as response:
                if not response.is_success:
                    response.read()
                    self._exchange.document(response)
                yield response
        except httpx.TransportError as error:
            raise self._exchange.unanswered(error) from error

    def metadata(self) -> dict[str, Any]:
        """The model's card and digest, and what the server allows."""
        return self._run(self._exchange.metadata())

    def ready(self) -> bool:
        """Whether the model makes predictions now. Needs no token."""
        return self._run(self._exchange.ready())

    def _run(self, steps: Steps[Result]) -> Result:
        reply: Reply = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                result: Result = end.value
                return result
            if isinstance(step, Send):
                reply = self._send(step)
            else:
                time.sleep(step)

    def _send(self, request: Send) -> "Reply":
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

        self._exchange = Exchange(url, model=model, token=token, retries=retries, key=key)
        self._http = httpx.AsyncClient(base_url=self._exchange.base, headers=self._exchange.headers, timeout=timeout)

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
        return await self._run(self._exchange.certify(image, settings))

    async def certify_signed(self, image: Image, **settings: Unpack[CertifySettings]) -> dict[str, Any]:
        """`certify`, but the JSON object as the server sent it: saved, `robust verify --key` checks it again."""
        return await self._run(self._exchange.certify_signed(image, settings))

    async def predict(self, image: Image, **settings: Unpack[PredictSettings]) -> Prediction:
        """The smoothed label of one image. Settings as of `Predictor.predict`."""
        return await self._run(self._exchange.predict(image, settings))

    async def stream(self, image: Image, **settings: Unpack[CertifySettings]) -> AsyncIterator[Snapshot | Certificate]:
        """`Client.stream`, as an asynchronous iterator."""
        import httpx

        request = self._exchange.stream(image, settings)
        try:
            async with self._http.stream(
                request.method, request.url, params=request.params, content=request.content
            ) as response:
                if not response.is_success:
                    await response.aread()
                    self._exchange.document(response)
                parser = EventParser()
                async for line in response.aiter_lines():
                    for event in parser.feed(line):
                        yield self._exchange.event(*event)
                parser.finish(self._exchange.base)
        except httpx.TransportError as error:
            raise self._exchange.unanswered(error) from error

    async def metadata(self) -> dict[str, Any]:
        """The model's card and digest, and what the server allows."""
        return await self._run(self._exchange.metadata())

    async def ready(self) -> bool:
        """Whether the model makes predictions now. Needs no token."""
        return await self._run(self._exchange.ready())

    async def _run(self, steps: Steps[Result]) -> Result:
        reply: Reply = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                result: Result = end.value
                return result
            if isinstance(step, Send):
                reply = await self._send(step)
            else:
                await asyncio.sleep(step)

    async def _send(self, request: Send) -> "Reply":
        import httpx

        try:
            return await self._http.request(request.method, request.url, params=request.params, content=request.content)
        except httpx.TransportError as error:
            return error
