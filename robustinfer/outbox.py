"""Answers on their way from the engine's thread into an event loop."""

import asyncio
from collections import deque
from concurrent.futures import Future
from typing import Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary, ref

__all__ = ["Outbox"]

_Result = TypeVar("_Result")


class Outbox:
    """What awaits answers in one event loop.

    `asyncio.wrap_future` wakes the loop for every answer; here those of one engine run wake it once. Waking costs a
    system call on either side, and each lets the other thread take the interpreter in the middle of its work.
    """

    _all: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, "Outbox"]] = WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)  # or `_all` would keep every loop that ever was
        self._posted: deque[tuple[Future[Any], asyncio.Future[Any]]] = deque()
        self._woken = False

    @classmethod
    def of_running_loop(cls) -> "Outbox":
        """That of the event loop this is called in."""
        loop = asyncio.get_running_loop()
        outbox = cls._all.get(loop)
        if outbox is None:
            outbox = cls._all[loop] = cls(loop)
        return outbox

    def expect(self, future: Future[_Result]) -> "asyncio.Future[_Result]":
        """An asyncio future of the same result. To cancel it is to cancel the other."""
        awaited = asyncio.get_running_loop().create_future()
        awaited.add_done_callback(lambda done: future.cancel() if done.cancelled() else None)
        future.add_done_callback(lambda done: self._post(done, awaited))
        return awaited

    def _post(self, future: Future[Any], awaited: asyncio.Future[Any]) -> None:
        """In any thread. First posted, then looked whether the loop has been woken: `_deliver` does the reverse."""
        self._posted.append((future, awaited))
        if not self._woken:
            self._woken = True
            loop = self._loop()
            try:
                if loop is not None:
                    loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # it was closed meanwhile: nobody waits
                self._posted.clear()

    def _deliver(self) -> None:
        self._woken = False
        while self._posted:
            future, awaited = self._posted.popleft()
            if awaited.done():
                continue
            if future.cancelled():
                awaited.cancel()
            elif error := future.exception():
                awaited.set_exception(error)
            else:
                awaited.set_result(future.result())
