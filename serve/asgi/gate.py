"""The gate: every request passes it before a byte of its body is read. It also writes the log line and the metrics."""

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from ..service import logs
from ..service.exchange import Answer
from ..service.refusals import Refusal, refusal_of
from ..service.state import State
from .bodies import too_large
from .metrics import Metrics
from .tracing import Tracing

__all__ = ["Gate", "Response", "Visit"]

_CLOSING = ("http_version", "two_lengths", "too_slow")  # after which nobody knows where the next request begins
CLIENT_GONE = 499  # as nginx logs it: nobody was there to be answered


class Visit:
    """One request on its way through the application, in `scope["state"]["visit"]`."""

    def __init__(self, scope: Scope) -> None:
        self.request_id = secrets.token_hex(16)
        self.began = time.perf_counter()
        # Names are in lower case; of a header that came twice, the first.
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        self.path: str = scope["path"]
        self._query_string: bytes = scope["query_string"]
        self.client: str = scope["client"][0] if scope.get("client") else ""
        self.v2 = self.path == "/v2" or self.path.startswith("/v2/")
        self.model = ""  # its name, once an address has named one that is served
        self.digest: str | None = None
        self.version: str | None = None
        self.trusted = False  # whether its sender may know what is served here

    @cached_property
    def fields(self) -> list[tuple[str, str]]:
        """Names and values of the query string."""
        text = self._query_string.decode("latin-1")
        return parse_qsl(text, keep_blank_values=True, encoding="utf-8", errors="replace")

    @cached_property
    def query(self) -> dict[str, str]:
        """The fields of the query string by name."""
        return dict(self.fields)

    def response(self, answer: Answer, **more: str) -> "Response":
        """The HTTP response of an answer; `more` are further headers."""
        text = answer.body.encode()
        headers = answer.headers | more | {"X-Request-ID": self.request_id, "Cache-Control": "no-store"}
        if answer.code in _CLOSING:
            headers["Connection"] = "close"
        if self.digest is not None and self.trusted and answer.mode != "health":
            headers["X-Model-Digest"] = self.digest
        headers["Content-Length"] = str(len(text) + len(answer.binary))
        headers["Content-Type"] = "application/json"
        if answer.binary:
            headers["Inference-Header-Content-Length"] = str(len(text))
            headers["Content-Type"] = "application/octet-stream"
        return Response(int(answer.status), headers, text + answer.binary)

    def refusal(self, error: BaseException, mode: str = "certify") -> Answer:
        """The answer to a request that failed before, or beside, the desk of a model."""
        refusal = refusal_of(error)
        document = {"error": refusal.message} if self.v2 else refusal.to_json(self.request_id)
        return Answer(refusal.status, json.dumps(document), mode, refusal.code)


@dataclass(frozen=True)
class Response:
    """An answer on its way out, as ASGI has it."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class Gate:
    """Lets requests in that may come in. `is_public` tells the addresses that need no token."""

    def __init__(
        self,
        application: ASGIApp,
        *,
        state: State,
        metrics: Metrics,
        tracing: Tracing,
        max_body: int,
        is_public: Callable[[str, Visit], bool],
    ) -> None:
        self._application = application
        self._state = state
        self._metrics = metrics
        self._tracing = tracing
        self._max_body = max_body
        self._is_public = is_public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        assert scope["type"] == "http"  # uvicorn is told to offer neither websockets nor lifespan
        visit = Visit(scope)
        scope.setdefault("state", {})["visit"] = visit
        scope["app"] = self  # asks Starlette to raise for a wrong method, so that it is answered here
        started = False

        async def answer_with(message: Any) -> None:
            nonlocal started
            started = True
            await send(message)

        with self._tracing.span(visit, scope["method"]):
            try:
                self._check(visit, scope)
                await self._application(scope, receive, answer_with)
            except ClientDisconnect:
                self.note(visit, "certify", CLIENT_GONE)
            except asyncio.CancelledError:
                self.note(visit, "certify", CLIENT_GONE)
                raise
            except Exception as error:
                answer = self._refused(visit, error)
                self.count(visit, answer)
                if not started:
                    headers = getattr(error, "headers", None) or {}  # Allow, beside a wrong method
                    await visit.response(answer, **headers)(scope, receive, send)

    def _check(self, visit: Visit, scope: Scope) -> None:
        if scope["http_version"] not in ("1.0", "1.1"):
            raise Refusal(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "http_version", "This server speaks HTTP/1.1.")
        if "transfer-encoding" in visit.headers and "content-length" in visit.headers:
            # Two lengths: what stands in front of us may see another end of this request than we do.
            raise Refusal.malformed("two_lengths", "A request has Content-Length or Transfer-Encoding, not both.")
        public = self._is_public(scope["method"], visit)
        if self._state.marked("stopping") and not public:
            raise Refusal.unavailable("stopping", "The server is stopping; ask another one.")
        visit.trusted = self._state.permits(visit.headers.get("authorization"))
        if not visit.trusted and not public:
            raise Refusal(
                HTTPStatus.UNAUTHORIZED, "unauthorized", "Send the header 'Authorization: Bearer TOKEN' with the token."
            )
        announced = visit.headers.get("content-length", "0")
        if announced.isdigit() and int(announced[:18]) > self._max_body:
            raise too_large(self._max_body, int(announced[:18]))

    def _refused(self, visit: Visit, error: Exception) -> Answer:
        if isinstance(error, HTTPException):  # Starlette's own, for a method that an address does not have
            error = Refusal(HTTPStatus(error.status_code), "wrong_method", f"{error.detail}.")
        answer = visit.refusal(error)
        if answer.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            # The reason is for the operator, not for the client; it is of our own making, not of the request's.
            logs.record("failure", request_id=visit.request_id, reason=f"{type(error).__name__}: {error}"[:500])
        return answer

    def count(self, visit: Visit, answer: Answer) -> None:
        """Metrics and log line of an answer."""
        self._metrics.observe(answer, model=visit.model, seconds=time.perf_counter() - visit.began)
        self.note(visit, answer.mode, int(answer.status), answer)

    def note(self, visit: Visit, mode: str, status: int, answer: Answer | None = None) -> None:
        """The log line of a request."""
        results = answer.results if answer else ()
        samples = sum(result.samples_used for result in results)
        self._tracing.note(model=visit.model, mode=mode, status=status, samples=samples)
        if mode == "health" and status == HTTPStatus.OK:  # probes come every few seconds
            return
        logs.record(
            "request",
            request_id=visit.request_id,
            model=visit.model or None,
            version=visit.version,
            digest=visit.digest,
            mode=mode,
            status=status,
            code=answer.code if answer else "client_gone",
            images=len(results),
            samples=samples,
            seconds=round(time.perf_counter() - visit.began, 6),
        )
