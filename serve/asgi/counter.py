"""The counter of one model in a worker: a request is read outside the engine's thread, submitted, and answered.

The engine's thread belongs to `Predictor.submit`, which shares its batches between clients and requests.
"""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from robustinfer import Certificate
from robustinfer.errors import CertificateError
from robustinfer.live import AnswerFuture
from robustinfer.npy import NPY_MAGIC

from ..service.decoding import LargePicture
from ..service.desk import HEALTH_N, Desk
from ..service.exchange import Answer, Exchange, Result
from ..service.reading import parse_json, read_image
from ..service.refusals import Refusal

__all__ = ["Counter", "cancel"]

_FRESH = 1.0  # seconds for which a success is evidence enough, so that health checks cannot be used as load
_HEALTH_SECONDS = 5.0
_SMALL = 1 << 16  # bytes
_OURSELVES = "health"  # a client like any other: it has its own fair share


class Counter:
    """Answers the requests of one model. `most` may be in its hands at once; the next gets 503."""

    def __init__(self, desk: Desk, readers: ThreadPoolExecutor, *, version: str, most: int) -> None:
        self.desk = desk
        self.version = version
        self.in_hand = 0
        self.answered = 0
        self._arrived = 0
        self._submitted: set[AnswerFuture] = set()
        self._readers = readers
        self._decoders = ThreadPoolExecutor(1, f"decode-{desk.name}")  # large pictures wait for each other, here
        # A replay draws all samples of a certificate in a thread of its own: one at a time beside the engine's.
        self._replayers = ThreadPoolExecutor(1, f"replay-{desk.name}")
        self._most = most

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """While inside, one more request is in hand; refused at once if there are too many."""
        if self.in_hand >= self._most:
            raise Refusal.unavailable("full", f"The server has {self.in_hand} requests in hand: try again later.")
        self.in_hand += 1
        self._arrived += 1
        try:
            yield
        finally:
            self.in_hand -= 1

    @property
    def drawn(self) -> int | None:
        """Samples that the engine has drawn for the requests in work, which grow; None if there is no work."""
        submitted = list(self._submitted)
        return sum(future.job.drawn for future in submitted) if submitted else None

    async def open(self, exchange: Exchange, client: str) -> list[AnswerFuture]:
        """Read the request and hand it to the engine. Nobody waits for somebody else's large picture but large ones.

        A small array is read here: that takes less time than to wake another thread.
        """
        loop, until = asyncio.get_running_loop(), time.monotonic() + self.desk.limits.max_reading
        body = exchange.incoming.data.get("body", b"")
        if len(body) <= _SMALL and body.startswith(NPY_MAGIC):
            return self._open(exchange, client, until, True)
        try:
            return await loop.run_in_executor(self._readers, self._open, exchange, client, until, True)
        except LargePicture:
            return await loop.run_in_executor(self._decoders, self._open, exchange, client, until, False)

    def _open(self, exchange: Exchange, client: str, until: float, small_only: bool) -> list[AnswerFuture]:
        self.desk.open(exchange, until, small_only=small_only)
        submitted: list[AnswerFuture] = []
        try:
            for request in exchange.requests:
                submitted.append(self.desk.predictor.submit(request, client=client))
        except BaseException:
            cancel(submitted)
            raise
        return submitted

    async def close(self, exchange: Exchange, submitted: list[AnswerFuture]) -> Answer:
        """Wait for the engine, and write the answer. If nobody waits any more, the work is cancelled."""
        began, before, first = time.perf_counter(), self._arrived, self.in_hand == 1
        self._submitted.update(submitted)
        try:
            results = await _results(submitted)
        except asyncio.CancelledError:
            cancel(submitted)
            raise
        finally:
            self._submitted.difference_update(submitted)
            self.answered += 1
        samples = sum(result.samples_used for result in results if not isinstance(result, BaseException))
        # Only a request that had the engine to itself tells how fast the engine is.
        alone = first and self._arrived == before
        self.desk.learn(samples, time.perf_counter() - began if alone else 0.0)
        return self.desk.close(exchange, results)

    async def check_health(self) -> None:
        """Refuse unless the model has just made a prediction, or makes one now."""
        if self.desk.state.marked("draining") or self.desk.state.marked("stopping"):
            raise Refusal.unavailable("draining", "The server is about to stop; ask another one.")
        if time.monotonic() - self.desk.last_success <= _FRESH:
            return
        try:
            await asyncio.wait_for(self.predict_once(), _HEALTH_SECONDS)
        except Exception as error:
            raise Refusal.unavailable("not_ready", "A test prediction failed.") from error

    async def predict_once(self) -> None:
        """One real prediction, among those of the clients."""
        if self.desk.predictor.card.sigma is None:
            await asyncio.get_running_loop().run_in_executor(self._readers, self.desk.check_scores)
        else:
            await self.desk.predictor.submit(self.desk.grey_request(HEALTH_N), client=_OURSELVES)
        self.desk.succeeded()

    async def verify(self, body: bytes) -> dict[str, Any]:
        """Replay a certificate: the JSON object of `Predictor.verify`."""
        return await asyncio.get_running_loop().run_in_executor(self._replayers, self._verify, body)

    def _verify(self, body: bytes) -> dict[str, Any]:
        document = parse_json(body)
        if not isinstance(document, dict) or not isinstance(document.get("certificate"), dict):
            raise Refusal.malformed("no_certificate", "Send a JSON object with the fields certificate and image.")
        claimed = document.pop("certificate")
        try:
            certificate = Certificate.from_json(claimed)
        except CertificateError as error:
            raise Refusal.unacceptable("bad_certificate", str(error)) from error
        if certificate.model.digest != self.desk.predictor.digest:
            raise Refusal.unacceptable("other_model", "The certificate was made by another model file than this one.")
        image = read_image(document, self.desk.predictor.card.input, self.desk.decoder.decode)
        self.desk.check_replay(certificate)
        try:
            return self.desk.predictor.verify(certificate, image).to_json()
        except CertificateError as error:
            raise Refusal.unacceptable("other_image", str(error)) from error


async def _results(submitted: list[AnswerFuture]) -> list[Result | BaseException]:
    """What came out of each, as `asyncio.gather` says it, which costs a small request more than it is worth."""
    answers = [future.in_loop() for future in submitted]
    results: list[Result | BaseException] = []
    for answer in answers:
        try:
            results.append(await answer)
        except asyncio.CancelledError:  # all of them, or the errors of others would be found by nobody
            for other in answers:
                other.cancel()
            raise
        except Exception as error:
            results.append(error)
    return results


def cancel(submitted: list[AnswerFuture]) -> None:
    """Free the places of requests whose answers nobody waits for."""
    for future in submitted:
        future.cancel()
