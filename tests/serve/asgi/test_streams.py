"""Votes come before the answer, and work ends with its client."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette")

from robust.serve.asgi.application import Application
from robust.serve.asgi.counter import Counter
from robust.serve.asgi.streams import unless_gone
from robust.serve.service.state import State
from starlette.requests import ClientDisconnect

from tests.waiting import PATIENCE, eventually, turn

Array = np.ndarray[Any, Any]


class Client:
    """Hangs up when told to."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.watched = 0

    async def receive(self) -> dict[str, Any]:
        self.watched += 1
        try:
            await self.gone.wait()
        finally:
            self.watched -= 1
        return {"type": "http.disconnect"}


async def _unfinished(log: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        log.append("cancelled")


def test_the_result_comes_and_nobody_watches_any_longer() -> None:
    async def main() -> None:
        client = Client()

        async def work() -> int:
            await turn()
            return 7

        assert await unless_gone(work(), {}, client.receive) == 7
        await turn()
        assert client.watched == 0

    asyncio.run(main())


def test_who_hangs_up_ends_the_work() -> None:
    async def main() -> None:
        client, log = Client(), list[str]()
        asyncio.get_running_loop().call_soon(client.gone.set)
        with pytest.raises(ClientDisconnect):
            await unless_gone(_unfinished(log), {}, client.receive)
        assert log == ["cancelled"]
        here = asyncio.current_task()
        assert here is not None
        assert here.cancelling() == 0  # what comes next in this task is not cancelled

    asyncio.run(main())


def test_a_server_that_cancels_is_not_taken_for_a_client_that_hangs_up() -> None:
    async def main() -> None:
        client, log = Client(), list[str]()
        task = asyncio.ensure_future(unless_gone(_unfinished(log), {}, client.receive))
        await turn()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert log == ["cancelled"]
        task = asyncio.ensure_future(unless_gone(_unfinished(log), {}, client.receive))
        await turn()
        client.gone.set()
        task.cancel()  # both at once: whoever cancels the task must see it cancelled
        with pytest.raises((asyncio.CancelledError, ClientDisconnect)):
            await task

    asyncio.run(main())


async def post(
    counter: Counter,
    question: dict[str, Any],
    send: Callable[[Any], Awaitable[None]],
    *,
    query: bytes = b"",
    hangs_up: bool = False,
) -> None:
    """Ask an application of this counter; a client that hangs up does so when its request has been read."""
    said = [{"type": "http.request", "body": json.dumps(question).encode()}]
    if hangs_up:
        said.append({"type": "http.disconnect"})

    async def receive() -> Any:
        return said.pop(0) if said else await asyncio.Event().wait()

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/predictions/tiny",
        "query_string": query,
        "headers": [],
        "client": ("127.0.0.1", 1),
    }
    application = Application({"tiny": counter}, state=State(None), max_body=1 << 20, read_seconds=PATIENCE)
    await asyncio.wait_for(application.gate(scope, receive, send), PATIENCE)


def test_votes_come_while_the_engine_runs(counter: Counter, image: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first runs of the engine wait for an event each, so that a quick one is watched as well as a slow one."""
    predictor, events, runs = counter.desk.predictor, list[tuple[str, dict[str, Any]]](), [0]
    expected = predictor.certify(image, n=50_000, seed=3)
    scores = predictor.engine.scores

    def watched(images: Array) -> Array:
        runs[0] += 1
        eventually(lambda: len(events) >= min(runs[0], 3))
        return scores(images)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            event = re.fullmatch(r"event: (\w+)\ndata: (.*)\n\n", message["body"].decode())
            assert event is not None
            events.append((event[1], json.loads(event[2])))

    monkeypatch.setattr(predictor.engine, "scores", watched)
    asyncio.run(post(counter, {"image": image.tolist(), "n": 50_000, "seed": 3}, send, query=b"stream=1"))
    *votes, (name, answer) = events
    assert name == "answer"
    assert (answer["radius"], answer["counts"]) == (expected.radius, list(expected.counts))
    assert {name for name, _ in votes} == {"votes"}
    used = [vote["samples_used"] for _, vote in votes]
    assert used[0] == 0 < used[1] < used[2]
    assert used == sorted(used)


@pytest.mark.parametrize(("query", "hangs_up"), [(b"", True), (b"stream=1", True), (b"stream=1", False)])
def test_a_client_that_is_gone_frees_the_engine(
    counter: Counter, image: Array, monkeypatch: pytest.MonkeyPatch, query: bytes, hangs_up: bool
) -> None:
    """Whether it hangs up or takes no votes: its work is cancelled, and that is not a failure of the server."""
    recorded: list[dict[str, Any]] = []
    monkeypatch.setattr("robust.serve.asgi.gate.logs.record", lambda event, **more: recorded.append(more))
    monkeypatch.setattr("robust.serve.asgi.streams._WRITE_SECONDS", PATIENCE if hangs_up else 0.01)
    submitted: list[Any] = []
    submit = counter.desk.predictor.submit

    def watched(*arguments: Any, **more: Any) -> Any:
        submitted.append(submit(*arguments, **more))
        return submitted[0]

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    monkeypatch.setattr(counter.desk.predictor, "submit", watched)
    question = {"image": image.tolist(), "n": 10**9}  # not done before the client is given up
    try:
        asyncio.run(post(counter, question, send, query=query, hangs_up=hangs_up))
    finally:
        cancelled = submitted[0].cancelled()
        submitted[0].cancel()  # or, if it was not, the engine would work on it beside all other tests
    assert cancelled
    assert [(one["status"], one["code"]) for one in recorded] == [(499, "client_gone")]
    assert counter.in_hand == 0
