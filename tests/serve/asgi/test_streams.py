"""Work ends with its client."""

import asyncio
from typing import Any

import pytest

pytest.importorskip("starlette")

from robust.serve.asgi.streams import unless_gone
from starlette.requests import ClientDisconnect

from tests.waiting import turn


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
