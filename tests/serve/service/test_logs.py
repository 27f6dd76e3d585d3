"""Lines of the log: those of one turn of an event loop are written together, and none costs an answer."""

import asyncio
import io
import logging
import threading
from typing import Any

from robust.serve.service.logs import _Gathering

from tests.waiting import turn


class Stream(io.StringIO):
    """Notes each piece that is written."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error
        self.pieces: list[str] = []

    def write(self, text: str) -> int:
        if self.error is not None:
            raise self.error
        if text:
            self.pieces.append(text)
        return len(text)


def _handler(stream: Stream) -> _Gathering:
    handler = _Gathering()
    handler.setStream(stream)
    return handler


def _record(message: str, *arguments: Any) -> logging.LogRecord:
    return logging.LogRecord("robust.serve", logging.INFO, __file__, 1, message, arguments, None)


def test_lines_of_one_turn_are_written_together_and_in_order() -> None:
    stream = Stream()
    handler = _handler(stream)

    async def main() -> None:
        for number in range(3):
            handler.handle(_record("line %d", number))
        assert stream.pieces == []
        await turn()
        handler.handle(_record("later"))
        await turn()
        handler.handle(_record("last"))

    asyncio.run(main())
    handler.flush()  # as logging.shutdown does, when the loop ended before its next turn
    assert stream.pieces == ["line 0\nline 1\nline 2\n", "later\n", "last\n"]


def test_a_line_of_another_thread_comes_at_once_with_what_was_kept() -> None:
    stream = Stream()
    handler = _handler(stream)

    async def main() -> None:
        handler.handle(_record("kept"))
        thread = threading.Thread(target=handler.handle, args=[_record("at once")])
        thread.start()
        thread.join()
        assert "".join(stream.pieces).splitlines() == ["at once", "kept"]
        handler.handle(_record("next"))
        await turn()

    asyncio.run(main())
    assert "".join(stream.pieces).splitlines() == ["at once", "kept", "next"]


def test_nobody_who_reads_the_log_is_no_failure_of_the_loop() -> None:
    """A failure would be logged by asyncio, whose line would fail in the next turn, for ever."""
    stream = Stream(BrokenPipeError())
    handler = _handler(stream)
    failures: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, failure: failures.append(failure))
        handler.handle(_record("lost"))
        await turn()
        stream.error = None
        handler.handle(_record("read again"))
        await turn()

    asyncio.run(main())
    assert failures == []
    assert stream.pieces == ["read again\n"]


def test_a_line_that_cannot_be_made_costs_no_answer(capsys: Any) -> None:
    stream = Stream()
    handler = _handler(stream)

    async def main() -> None:
        handler.handle(_record("%d", "not a number"))
        handler.handle(_record("good"))
        await turn()

    asyncio.run(main())
    assert stream.pieces == ["good\n"]
    assert "not a number" in capsys.readouterr().err
