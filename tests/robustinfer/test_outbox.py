"""Answers come from the engine's thread into an event loop, those of one run in one go."""

import asyncio
import gc
from concurrent.futures import CancelledError, Future

import pytest

from robustinfer.outbox import Outbox
from tests.waiting import turn


def test_answers_that_come_together_wake_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        wakings = []
        wake = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda call: wakings.append(wake(call)))
        outbox = Outbox(loop)
        for run in (1, 2):
            futures: list[Future[int]] = [Future() for _ in range(5)]
            awaited = [outbox.expect(future) for future in futures]
            for number, future in enumerate(futures):
                future.set_result(number)
            assert await asyncio.gather(*awaited) == [0, 1, 2, 3, 4]
            assert len(wakings) == run

    asyncio.run(main())


def test_errors_and_cancellations_pass_in_both_directions() -> None:
    async def main() -> None:
        outbox = Outbox.of_running_loop()
        assert Outbox.of_running_loop() is outbox
        failed: Future[int] = Future()
        awaited = outbox.expect(failed)
        failed.set_exception(ValueError("no"))
        with pytest.raises(ValueError, match="no"):
            await awaited
        cancelled: Future[int] = Future()
        awaited = outbox.expect(cancelled)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await awaited
        given_up: Future[int] = Future()
        outbox.expect(given_up).cancel()
        await turn()
        with pytest.raises(CancelledError):
            given_up.result()

    asyncio.run(main())


def test_an_answer_that_nobody_waits_for_any_more_disturbs_nobody() -> None:
    left: Future[int] = Future()

    async def main() -> None:
        outbox = Outbox.of_running_loop()
        outbox.expect(left)
        given_up: Future[int] = Future()
        given_up.set_running_or_notify_cancel()  # too late to be cancelled
        outbox.expect(given_up).cancel()
        other: Future[int] = Future()
        awaited = outbox.expect(other)
        given_up.set_result(1)
        other.set_result(2)
        assert await awaited == 2

    asyncio.run(main())
    left.set_result(3)  # its loop is closed


def test_an_event_loop_that_is_over_is_forgotten() -> None:
    """Who runs a new one for every answer keeps none of them, not even if an answer comes too late."""

    async def main(late: Future[int]) -> None:
        answer: Future[int] = Future()
        answer.set_result(1)
        outbox = Outbox.of_running_loop()
        outbox.expect(late)
        assert await outbox.expect(answer) == 1

    gc.collect()
    before = len(Outbox._all)
    for _ in range(3):
        late: Future[int] = Future()
        asyncio.run(main(late))
        late.set_result(2)
        del late
    gc.collect()
    assert len(Outbox._all) <= before
