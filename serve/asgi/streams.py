"""Server-sent events: the votes of an answer on its way, and the answer at last; and work that ends with its client."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from robustinfer.live import AnswerFuture

from ..service.exchange import Answer, Exchange
from .counter import Counter, cancel
from .plain import HANG_UP

__all__ = ["EventStream", "unless_gone"]

_Result = TypeVar("_Result")

_INTERVAL = 0.1  # seconds between two events, at least
_WRITE_SECONDS = 30.0  # for a client to take an event over


class EventStream:
    """An HTTP response of events: `votes` as they come in, then `answer`, or `error`."""

    def __init__(
        self,
        counter: Counter,
        exchange: Exchange,
        submitted: AnswerFuture,
        *,
        headers: dict[str, str],
        count: Callable[[Answer], None],
    ) -> None:
        self._counter = counter
        self._exchange = exchange
        self._submitted = submitted
        self._headers = {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no", **headers}
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, until the client hangs up."""
        with self._counter.admitted():
            try:
                await unless_gone(self._send_events(send), scope, receive)
            finally:
                cancel([self._submitted])

    async def _send_events(self, send: Send) -> None:
        headers = [(name.lower().encode(), value.encode()) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": int(HTTPStatus.OK), "headers": headers})
        async for snapshot in self._submitted.snapshots(interval=_INTERVAL):
            await self._send(send, "votes", json.dumps(snapshot.to_json()), more=True)
        answer = await self._counter.close(self._exchange, [self._submitted])
        self._count(answer)
        await self._send(send, "answer" if answer.code is None else "error", answer.body, more=False)

    async def _send(self, send: Send, name: str, data: str, *, more: bool) -> None:
        body = f"event: {name}\ndata: {data}\n\n".encode()
        try:
            async with asyncio.timeout(_WRITE_SECONDS):
                await send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:  # as good as gone, and no failure of ours
            raise ClientDisconnect from None


async def unless_gone(work: Awaitable[_Result], scope: Scope, receive: Receive) -> _Result:
    """The result of the work, which is cancelled as soon as the client hangs up."""
    here = asyncio.current_task()
    assert here is not None
    is_gone = False

    def leave() -> None:
        nonlocal is_gone
        is_gone = True
        here.cancel()

    forget = _watch(scope, receive, leave)
    try:
        return await work
    except asyncio.CancelledError:
        if is_gone and not here.uncancel():  # by us, and by nobody else
            raise ClientDisconnect from None
        raise
    finally:
        forget()


def _watch(scope: Scope, receive: Receive, leave: Callable[[], None]) -> Callable[[], object]:
    """Have `leave` called, in a later turn of the event loop, when the client is gone; returns what calls it off."""
    when_gone: Callable[[Callable[[], None]], Callable[[], None]] | None = scope.get("extensions", {}).get(HANG_UP)
    if when_gone is not None:
        return when_gone(leave)
    watching = asyncio.create_task(_disconnected(receive))
    watching.add_done_callback(lambda done: None if done.cancelled() else leave())
    return watching.cancel


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
