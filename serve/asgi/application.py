"""The addresses: those of `serve/service/openapi.json`, the open inference protocol, and votes as events."""

import json
from collections import Counter as Counted
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from robustinfer import __version__
from robustinfer.baseline import Baseline
from robustinfer.live import AnswerFuture

from ..service import openapi, protocol_v2
from ..service.exchange import Answer, Exchange, Incoming
from ..service.reading import merged
from ..service.refusals import Refusal
from ..service.state import State
from .bodies import Bodies, form_fields
from .counter import Counter, cancel
from .gate import Gate, Response, Visit
from .metrics import Metrics
from .streams import EventStream, unless_gone
from .tracing import Tracing

__all__ = ["Application"]

_ASK = ["POST", "PUT"]  # curl -T sends a PUT
_OWN_FIELDS = ("stream", "model_name")  # of the query; what is left are settings


class Application:
    """The ASGI application of a worker."""

    def __init__(
        self,
        counters: Mapping[str, Counter],
        *,
        state: State,
        max_body: int,
        read_seconds: float,
        page: Sequence[BaseRoute] = (),
        tracing: Tracing | None = None,
    ) -> None:
        self.counters = dict(counters)
        self._has_page = bool(page)
        self._bodies = Bodies(limit=max_body, seconds=read_seconds)
        self.routes = self._routes()
        """All addresses but those of the page."""
        self._router = Router([*self.routes, *page], redirect_slashes=False, default=_nowhere)
        self._asked = {f"/models/{name}/invoke": {"model": name} for name in self.counters}
        self.gate = Gate(
            self._route,
            state=state,
            metrics=Metrics(_baselines(self.counters)),
            tracing=tracing or Tracing(),
            max_body=max_body,
            is_public=self._is_public,
        )

    @property
    def in_hand(self) -> int:
        """Requests that were accepted and are not answered yet."""
        return sum(counter.in_hand for counter in self.counters.values())

    def _routes(self) -> list[Route]:
        routes = [
            Route("/ping", self._ping),
            Route("/openapi.json", self._openapi),
            Route("/models", self._models),
            Route("/invocations", self._ask, methods=_ASK),
            Route("/invocations", self._metadata),
            Route("/models/{model}/verify", self._verify, methods=["POST"]),
            Route("/v2", self._v2_server),
            Route("/v2/health/live", self._ping),
            Route("/v2/health/ready", self._ready),
        ]
        for address in ("/models/{model}/invoke", "/predictions/{model}", "/predictions/{model}/{version}"):
            routes += [Route(address, self._ask, methods=_ASK), Route(address, self._metadata)]
        routes.append(Route("/predictions/{model}/{version}/metadata", self._metadata))
        for address in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            routes += [
                Route(address, self._v2_model),
                Route(f"{address}/ready", self._health),
                Route(f"{address}/infer", self._ask, methods=["POST"]),
            ]
        return routes

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As the router does, but without trying one address after the other where nearly every request goes."""
        parameters = self._asked.get(scope["path"])
        if parameters is None or scope["method"] not in _ASK:
            await self._router(scope, receive, send)
            return
        scope["path_params"] = parameters
        response = await self._ask(Request(scope, receive))
        await response(scope, receive, send)

    def _is_public(self, method: str, visit: Visit) -> bool:
        """Whether anybody may ask: liveness and readiness, which tell nothing of a model."""
        if method not in ("GET", "HEAD"):
            return False
        path = visit.path
        if path in ("/ping", "/v2/health/live", "/v2/health/ready"):
            return True
        parts = path.strip("/").split("/")
        if self._has_page and parts[0] in ("", "page") and parts[1:2] != ["api"]:  # files that tell of no model
            return True
        if parts[0] == "v2" and parts[-1] == "ready":
            return True
        return parts[0] == "models" and parts[-1] == "invoke" and visit.query.get("mode") == "health"

    def _counter(self, request: Request) -> Counter:
        """The model that an address names. A stranger is not told which names there are: readiness is all it gets."""
        visit = _visit(request)
        name = request.path_params.get("model")
        if name is None:
            name = visit.query.get("model_name")
        if name is None and len(self.counters) == 1:
            (name,) = self.counters
        counter = self.counters.get(name or "")
        version = request.path_params.get("version")
        if counter is None or (version is not None and version != counter.version):
            raise Refusal(HTTPStatus.NOT_FOUND, "no_such_model", "There is no such model here.")
        visit.model, visit.digest = counter.desk.name, counter.desk.predictor.digest
        visit.version = counter.version
        return counter

    async def _ask(self, request: Request) -> ASGIApp:
        """Certify or label: the answer, or its votes as they come."""
        visit = _visit(request)
        counter = self._counter(request)
        streams = _is_true(visit.query.get("stream", "0"))  # refused before there is work to be cancelled
        with counter.admitted():
            exchange, submitted = await self._opened(request, counter)
            if not streams:
                answer = await unless_gone(counter.close(exchange, submitted), request.scope, request.receive)
                self.gate.count(visit, answer)
                return visit.response(answer)
        if len(submitted) != 1 or exchange.v2:
            cancel(submitted)
            raise Refusal.unacceptable("bad_setting", "stream is for one image, outside the open protocol.")
        # Nobody can come in between: Starlette calls what is returned here before it waits for anything.
        headers = {"X-Request-ID": visit.request_id, "X-Model-Digest": visit.digest or "", "Cache-Control": "no-store"}
        return EventStream(
            counter, exchange, submitted[0], headers=headers, count=lambda answer: self.gate.count(visit, answer)
        )

    async def _opened(self, request: Request, counter: Counter) -> tuple[Exchange, list[AnswerFuture]]:
        visit = _visit(request)
        async with self._bodies.read(request.receive) as body:
            content_type = visit.headers.get("content-type", "")
            fields: dict[str, Any] = {
                name: value.encode() for name, value in visit.query.items() if name not in _OWN_FIELDS
            }
            if content_type.lower().startswith("multipart/form-data"):
                fields = merged(fields, form_fields(body, content_type))
            else:
                fields["body"] = body
            exchange = Exchange(
                Incoming(fields, visit.headers, visit.request_id, repeated=_repeated(visit.fields), v2=visit.v2)
            )
            return exchange, await counter.open(exchange, visit.client)

    async def _verify(self, request: Request) -> Response:
        """Replay a certificate."""
        counter = self._counter(request)
        with counter.admitted():
            async with self._bodies.read(request.receive) as body:
                replay = counter.verify(body)
            document = await unless_gone(replay, request.scope, request.receive)
        return self._plain(request, document, mode="verify")

    async def _metadata(self, request: Request) -> Response:
        if _visit(request).query.get("mode") == "health":
            return await self._health(request)
        return self._plain(request, self._counter(request).desk.metadata(), mode="metadata")

    async def _health(self, request: Request) -> Response:
        counter = self._counter(request)
        await counter.check_health()
        return self._plain(request, {"ready": True}, mode="health")

    async def _ready(self, request: Request) -> Response:
        for counter in self.counters.values():
            await counter.check_health()
        return self._plain(request, {"ready": True}, mode="health")

    async def _ping(self, request: Request) -> ASGIApp:
        return JSONResponse({"status": "Healthy", "live": True})

    async def _openapi(self, request: Request) -> ASGIApp:
        return JSONResponse(openapi.document("asgi"))

    async def _models(self, request: Request) -> Response:
        models = [{"name": name, "version": counter.version} for name, counter in self.counters.items()]
        return self._plain(request, {"models": models}, mode="metadata")

    async def _v2_server(self, request: Request) -> Response:
        document = {"name": "robustinfer", "version": __version__, "extensions": list(protocol_v2.EXTENSIONS)}
        return self._plain(request, document, mode="metadata")

    async def _v2_model(self, request: Request) -> Response:
        counter = self._counter(request)
        spec = counter.desk.predictor.card.input
        document = protocol_v2.model_metadata(spec, name=counter.desk.name, version=counter.version)
        return self._plain(request, document, mode="metadata")

    def _plain(self, request: Request, document: Mapping[str, Any], *, mode: str) -> Response:
        """An answer without votes."""
        visit = _visit(request)
        answer = Answer(HTTPStatus.OK, json.dumps(document), mode)
        self.gate.count(visit, answer)
        return visit.response(answer)


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    raise Refusal(HTTPStatus.NOT_FOUND, "no_such_address", "There is nothing at this address.")


def _baselines(counters: Mapping[str, Counter]) -> dict[str, Baseline]:
    """The baselines of the models whose cards have one."""
    cards = {name: counter.desk.predictor.card for name, counter in counters.items()}
    return {name: Baseline.from_json(card.baseline) for name, card in cards.items() if card.baseline is not None}


def _visit(request: Request) -> Visit:
    visit: Visit = request.scope["state"]["visit"]
    return visit


def _repeated(fields: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The fields that stand in the query string twice."""
    return tuple(name for name, count in Counted(name for name, _ in fields).items() if count > 1)


def _is_true(word: str) -> bool:
    if word not in ("0", "1", "true", "false"):
        raise Refusal.malformed("wrong_type", "stream is 1 or 0.")
    return word in ("1", "true")
