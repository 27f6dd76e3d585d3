"""The addresses of the page: static files for anybody, and, with the server's token, what the page asks of a model."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from robustinfer import Predictor
from robustinfer.errors import SettingError
from robustinfer.settings import SETTINGS

from ..service.limits import Limits
from ..service.reading import Decode, read
from ..service.refusals import Refusal, refusal_of
from .material import Material, material_beside
from .prices import ALPHAS, SIZES, prices
from .views import views
from .walks import random_direction, walk

log = logging.getLogger("robustinfer")

__all__ = ["HEADERS", "PageModel", "page_routes"]

HEADERS = {
    # Nothing but files of this server, no script or style inside the page, no frame around it. Pictures come as data.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # a server that was updated shows its new page
}
"""Headers of every file of the page."""

_STATIC = Path(__file__).with_name("static")
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_MOST_VIEWS = 24
_DEADLINE = 5.0  # seconds for which a visitor watches the votes come in
_LARGEST_SEED = 2**64 - 1
_READ_SECONDS = 30.0


@dataclass(frozen=True)
class PageModel:
    """A served model as the page needs it: its predictor, its file and the server's limits.

    `decode` turns the bytes of a picture into pixels: the server's own way, which has a limit of time.
    """

    predictor: Predictor
    path: Path
    limits: Limits
    decode: Decode | None = None


def page_routes(models: Mapping[str, PageModel], *, permits: Callable[[str | None], bool]) -> list[BaseRoute]:
    """The routes of the page. `permits` says whether a request with this Authorization header may ask a model."""
    desk = _Desk(models, permits)
    return [
        Route("/", _to_the_page),
        Route("/page", _to_the_page),
        Route("/page/", _file),
        Route("/page/api/models", desk.models, methods=["GET"]),
        Route("/page/api/{model}/views", desk.views, methods=["POST"]),
        Route("/page/api/{model}/walk", desk.walk, methods=["POST"]),
        Route("/page/api/{model}/prices", desk.prices, methods=["POST"]),
        Route("/page/{file}", _file),
    ]


async def _to_the_page(request: Request) -> Response:
    return RedirectResponse("page/" if request.url.path.endswith("/") else f"{request.url.path}/", headers=HEADERS)


async def _file(request: Request) -> Response:
    """A file of the page: those of its folder, by their names alone."""
    name = request.path_params.get("file", "index.html")
    files = {path.name: path for path in _STATIC.iterdir() if path.suffix in _TYPES}
    if name not in files:
        return Response("There is no such file.\n", 404, HEADERS, "text/plain")
    return FileResponse(files[name], headers=HEADERS, media_type=_TYPES[files[name].suffix])


class _Desk:
    """Answers what only the page asks."""

    def __init__(self, models: Mapping[str, PageModel], permits: Callable[[str | None], bool]) -> None:
        self._models = models
        self._permits = permits
        # One visitor's table of prices must not take the processors from everybody's certificates.
        self._turns = asyncio.Semaphore(1)
        self._material = {name: material_beside(one.path, one.predictor.card) for name, one in models.items()}

    async def models(self, request: Request) -> Response:
        """Every model that can be asked for certificates, by growing noise: classes, limits, examples."""

        async def answer() -> dict[str, Any]:
            able = [(name, one) for name, one in self._models.items() if one.predictor.card.sigma is not None]
            able.sort(key=lambda pair: pair[1].predictor.card.sigma or 0.0)
            return {"models": [_described(name, one, self._material[name]) for name, one in able]}

        return await self._answered(request, answer)

    async def views(self, request: Request) -> Response:
        """Noisy copies of the image in the body, and their votes."""

        async def answer() -> dict[str, Any]:
            model, _, image = await self._opened(request)
            count = _whole(request, "count", least=1, most=_MOST_VIEWS, default=12)
            seed = _whole(request, "seed", least=0, most=_LARGEST_SEED, default=-1)
            first = _whole(request, "first", least=0, most=2**62, default=0)
            found = await self._work(
                views,
                model.predictor,
                image,
                count=count,
                seed=None if seed < 0 else seed,
                first=first,
                domain=model.limits.domain,
            )
            return dict(found.to_json())

        return await self._answered(request, answer)

    async def walk(self, request: Request) -> Response:
        """Labels along a direction: `attack` and the name of an example, or the number of a random direction."""

        async def answer() -> dict[str, Any]:
            model, material, image = await self._opened(request)
            example = request.query_params.get("attack")
            if example is None:
                number = _whole(request, "random", least=0, most=2**32, default=0)
                direction = random_direction(image.shape, number)
            elif (known := material.direction(example)) is not None:
                direction = known
            else:
                raise Refusal.unacceptable("no_attack", "There is no attack direction for this picture.")
            found = await self._work(
                walk,
                model.predictor,
                material.ordinary,
                image,
                direction,
                radius=_radius(request),
                attack=example is not None,
                domain=model.limits.domain,
            )
            return dict(found.to_json())

        return await self._answered(request, answer)

    async def prices(self, request: Request) -> Response:
        """What n votes about the image in the body prove at each alpha."""

        async def answer() -> dict[str, Any]:
            model, _, image = await self._opened(request)
            choices = _choices(model.limits)
            found = await self._work(
                prices,
                model.predictor,
                image,
                sizes=choices["n"],
                alphas=choices["alpha"],
                domain=model.limits.domain,
            )
            return dict(found.to_json())

        return await self._answered(request, answer)

    async def _work(self, work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Compute something in another thread, one visitor after the other."""
        async with self._turns:
            return await run_in_threadpool(work, *arguments, **options)

    async def _opened(self, request: Request) -> tuple[PageModel, Material, Any]:
        """The model of the address, its material, and the image of the body."""
        name = request.path_params["model"]
        if name not in self._models:
            raise Refusal(HTTPStatus.NOT_FOUND, "no_model", "There is no such model on this server.")
        model = self._models[name]
        body = await _body(request, model.limits.max_body)
        reading = await run_in_threadpool(
            read,
            {"body": body},
            content_type=request.headers.get("content-type", ""),
            spec=model.predictor.card.input,
            limits=model.limits,
            decode=model.decode,
        )
        return model, self._material[name], reading.images[0]

    async def _answered(self, request: Request, answer: Callable[[], Awaitable[dict[str, Any]]]) -> Response:
        """The JSON of the answer, or the sentence of a refusal; nothing is read before the token is checked."""
        try:
            if not self._permits(request.headers.get("authorization")):
                raise Refusal(
                    HTTPStatus.UNAUTHORIZED,
                    "unauthorized",
                    "Send the header 'Authorization: Bearer TOKEN' with the token.",
                )
            document, status = await answer(), HTTPStatus.OK
        except Exception as error:
            refusal = refusal_of(error)
            if refusal.status == HTTPStatus.INTERNAL_SERVER_ERROR:
                log.exception("The page got no answer.")
            document, status = refusal.to_json(None), refusal.status
        text = json.dumps(document, ensure_ascii=False)
        return Response(text, status, {**HEADERS, "Cache-Control": "no-store"}, "application/json")


def _described(name: str, one: PageModel, material: Material) -> dict[str, Any]:
    card = one.predictor.card
    return {
        "name": name,
        "sigma": card.sigma,
        "classes": card.classes,
        "input": card.input.to_json(),
        "members": len(card.members),
        "digest": one.predictor.digest,
        "choices": _choices(one.limits),
        "ordinary": material.ordinary is not None,
        "examples": [example.to_json() for example in material.examples],
    }


def _choices(limits: Limits) -> dict[str, Any]:
    """What the page offers to ask for, of what the server allows."""
    return {
        "n": [size for size in SIZES if size <= limits.max_n] or [limits.max_n],
        "alpha": [alpha for alpha in ALPHAS if limits.min_alpha <= alpha <= limits.max_alpha] or [limits.max_alpha],
        "deadline": min(_DEADLINE, limits.max_deadline),
    }


async def _body(request: Request, most: int) -> bytes:
    body = b""
    try:
        async with asyncio.timeout(_READ_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > most:
                    sentence = f"A body has at most {most} bytes."
                    raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "limit_body", sentence)
    except TimeoutError:
        raise Refusal(HTTPStatus.REQUEST_TIMEOUT, "slow_body", "The picture took too long to arrive.") from None
    return body


def _whole(request: Request, name: str, *, least: int, most: int, default: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most):
        raise Refusal.malformed("wrong_type", f"Expected a whole number from {least} to {most} for {name}.")
    return int(text)


def _radius(request: Request) -> float:
    """The radius of the certificate; 0 where it abstained."""
    setting = SETTINGS["radius"]
    value = setting.parse(request.query_params.get("radius", "0"))
    if value == 0:
        return 0.0
    try:
        return float(setting.check(value))
    except SettingError as error:
        raise Refusal.malformed("wrong_type", str(error)) from None
