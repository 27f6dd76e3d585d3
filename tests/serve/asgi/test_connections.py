"""Connections: writes of one turn of the event loop leave together, and silence has an end, by a clock made by hand."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine, Generator, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from robust.serve.asgi.connections import Gathering, LimitedProtocol, limited
from uvicorn import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.server import ServerState

from ...waiting import PATIENCE


class Loop:
    """An event loop whose turns are taken by hand."""

    def __init__(self) -> None:
        self._soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def turn(self) -> int:
        """Call what was to be called in this turn; returns how many those were."""
        soon, self._soon = self._soon, []
        for callback in soon:
            callback()
        return len(soon)


class Transport(asyncio.Transport):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.told: list[Any] = []
        self.twice = asyncio.Event()

    def write(self, data: Any) -> None:
        self.told.append(bytes(data))
        if len(self.told) == 2:
            self.twice.set()

    def close(self) -> None:
        self.told.append("close")

    def abort(self) -> None:
        self.told.append("abort")

    def pause_reading(self) -> None:
        """There is nobody to read from."""

    def resume_reading(self) -> None:
        """Nor now."""

    def is_closing(self) -> bool:
        return bool({"close", "abort"}.intersection(self.told))


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def transport() -> Transport:
    return Transport()


@pytest.fixture
def gathering(transport: Transport, loop: Loop) -> Gathering:
    return Gathering(transport, loop)  # type: ignore[arg-type]


def test_writes_of_one_turn_leave_together_and_in_order(gathering: Gathering, transport: Transport, loop: Loop) -> None:
    for piece in (b"head", b"", b"body", b"end"):
        gathering.write(piece)
    assert transport.told == []
    assert loop.turn() == 1
    assert transport.told == [b"headbodyend"]
    assert loop.turn() == 0
    gathering.write(b"next")
    assert loop.turn() == 1
    assert transport.told == [b"headbodyend", b"next"]


def test_close_sends_what_is_gathered(gathering: Gathering, transport: Transport, loop: Loop) -> None:
    gathering.write(b"last ")
    gathering.write(b"words")
    gathering.close()
    assert transport.told == [b"last words", "close"]
    loop.turn()  # nothing is left for it
    assert transport.told == [b"last words", "close"]


def test_everything_else_is_the_transports_own(gathering: Gathering, transport: Transport) -> None:
    assert gathering.get_extra_info("peername") == ("127.0.0.1", 1)
    assert not gathering.is_closing()
    gathering.abort()
    assert gathering.is_closing()
    assert transport.told == ["abort"]


class Connected(asyncio.Protocol):
    """Knows when its connection is over."""

    def __init__(self) -> None:
        self.over: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set_result(exc)


async def connected(protocol: Any, kernel: int | None = None) -> tuple[Gathering, socket.socket]:
    """A gathering transport over a real connection, and the socket at its other end."""
    own, other = socket.socketpair()
    if kernel is not None:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, kernel)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: protocol, sock=own)
    other.setblocking(False)
    return Gathering(transport, loop), other


async def received(other: socket.socket) -> bytes:
    pieces = []
    while piece := await asyncio.wait_for(asyncio.get_running_loop().sock_recv(other, 1 << 20), PATIENCE):
        pieces.append(piece)
    return b"".join(pieces)


def test_large_writes_arrive_whole() -> None:
    """More than the kernel takes at once, in several turns, and the connection is closed at the end."""

    async def check() -> None:
        protocol = Connected()
        gathering, other = await connected(protocol, kernel=1 << 14)
        pieces = [bytes([number]) * (1 << 18) for number in range(12)]
        with other:
            for piece in pieces[:8]:
                gathering.write(piece)
            begun = await asyncio.get_running_loop().sock_recv(other, 1)
            for piece in pieces[8:]:
                gathering.write(piece)
            gathering.close()
            assert begun + await received(other) == b"".join(pieces)
            assert await asyncio.wait_for(protocol.over, PATIENCE) is None

    asyncio.run(check())


def test_abort_ends_the_connection_whatever_was_written() -> None:
    async def check() -> None:
        protocol = Connected()
        gathering, other = await connected(protocol)
        with other:
            gathering.write(b"never sent")
            gathering.abort()
            gathering.write(b"too late")
            assert await asyncio.wait_for(protocol.over, PATIENCE) is None
            assert await received(other) == b""

    asyncio.run(check())


async def answering(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers in three pieces."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"6")]})
    await send({"type": "http.response.body", "body": b"abc", "more_body": True})
    await send({"type": "http.response.body", "body": b"def"})


def test_an_answer_is_one_write() -> None:
    async def check() -> list[Any]:
        protocol_class = limited(header_seconds=PATIENCE, most=10)
        config = Config(answering, http=protocol_class, lifespan="off", log_config=None, access_log=False)
        config.load()
        protocol = protocol_class(config=config, server_state=ServerState(), app_state={})
        transport = Transport()
        protocol.connection_made(transport)
        protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        await asyncio.wait_for(transport.twice.wait(), PATIENCE)
        told = list(transport.told)
        protocol.connection_lost(None)
        return told

    told = asyncio.run(check())
    assert len(told) == 2
    for answer in told:
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"\r\n\r\nabcdef")


class Forever:
    """What a task waits for that nobody wakes."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class Clock(Loop):
    """An event loop whose time is told by hand, and whose tasks go on until they wait for something."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.later: list[Any] = []
        self._tasks: list[Coroutine[Any, Any, None]] = []

    def time(self) -> float:
        return self.seconds

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        handle = SimpleNamespace(when=self.seconds + delay, callback=callback)
        handle.cancel = lambda: self.later.remove(handle) if handle in self.later else None
        self.later.append(handle)
        return handle

    def create_task(self, task: Coroutine[Any, Any, None]) -> Any:
        def begin() -> None:
            with contextlib.suppress(StopIteration):
                task.send(None)

        self._tasks.append(task)
        self.call_soon(begin)
        return Mock()

    def close(self) -> None:
        """Give up what still waits."""
        for task in self._tasks:
            task.close()

    def at(self, seconds: float) -> None:
        """Let the time come, and call what is due by then."""
        self.seconds = seconds
        for handle in [handle for handle in self.later if handle.when <= seconds]:
            handle.cancel()
            handle.callback()


class Visitors:
    """Connections to one server that allows two of them, and ten seconds of silence."""

    def __init__(self) -> None:
        self.clock = Clock()
        self._state = ServerState()
        self._class = limited(header_seconds=10.0, most=2)
        self._config = Config(
            self.application, interface="asgi3", lifespan="off", log_config=None, timeout_keep_alive=75
        )

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers, or begins to, or does not, as the address says."""
        if scope["path"] == "/answer":
            await answering(scope, receive, send)
        if scope["path"] == "/begin":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"6")]})
            await send({"type": "http.response.body", "body": b"abc", "more_body": True})
        if scope["path"] != "/answer":
            await Forever()

    def come(self) -> LimitedProtocol:
        visitor: LimitedProtocol = self._class(self._config, self._state, {}, self.clock)  # type: ignore[arg-type]
        visitor.connection_made(Transport())
        return visitor

    def say(self, visitor: LimitedProtocol, words: bytes) -> None:
        """Let bytes arrive, and what they ask for begin."""
        visitor.data_received(words)
        while self.clock.turn():
            pass

    def ask(self, visitor: LimitedProtocol, address: str) -> None:
        self.say(visitor, f"GET /{address} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


def is_gone(visitor: LimitedProtocol) -> bool:
    assert isinstance(visitor.transport, Gathering)
    told: list[Any] = visitor.transport.told
    return "abort" in told


@pytest.fixture
def visitors() -> Iterator[Visitors]:
    visitors = Visitors()
    yield visitors
    visitors.clock.close()


def test_silence_has_an_end(visitors: Visitors) -> None:
    silent = visitors.come()
    visitors.say(silent, b"GET /answer HTTP/1.1\r\nHost:")  # the rest does not come
    visitors.clock.at(9.9)
    assert not is_gone(silent)
    visitors.clock.at(10.0)
    assert is_gone(silent)
    lost = visitors.come()
    lost.connection_lost(None)
    assert visitors.clock.later == []


def test_whoever_waits_for_an_answer_may_be_silent(visitors: Visitors) -> None:
    patient = visitors.come()
    visitors.clock.at(9.0)
    visitors.ask(patient, "work")
    visitors.clock.at(1000.0)
    assert not is_gone(patient)
    patient.connection_lost(None)
    assert visitors.clock.later == []


def test_between_requests_a_connection_may_rest_for_longer(visitors: Visitors) -> None:
    """Longer than proxies keep one, so that they do not ask on a connection that is being closed."""
    guest, resting = visitors.come(), visitors.come()
    for seconds in (9.0, 80.0):
        visitors.clock.at(seconds)
        for one in (guest, resting):
            visitors.ask(one, "answer")
    visitors.clock.at(100.0)
    visitors.say(guest, b"GET /answer HTTP/1.1\r\nHost:")  # the rest does not come
    visitors.clock.at(109.9)
    assert not is_gone(guest)
    visitors.clock.at(110.0)
    assert is_gone(guest)
    assert isinstance(resting.transport, Gathering)
    assert not resting.transport.is_closing()
    visitors.clock.at(155.0)
    assert resting.transport.told[-1] == "close"


def test_the_rest_of_a_body_that_nobody_reads_has_a_limit(visitors: Visitors) -> None:
    guest = visitors.come()
    visitors.say(guest, b"POST /answer HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
    visitors.clock.at(9.9)
    assert not is_gone(guest)
    visitors.clock.at(10.0)
    assert is_gone(guest)


@pytest.mark.parametrize("unusual", [b"", b"A: 1\r\nA: 2\r\n"], ids=["plain", "h11"])
def test_a_connection_rests_once_the_rest_of_a_body_has_come_after_its_answer(
    visitors: Visitors, unusual: bytes
) -> None:
    """As clients do that send head and body apart, when the token was wrong."""
    guest, hesitant = visitors.come(), visitors.come()
    for one in (guest, hesitant):
        visitors.say(one, b"POST /answer HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n" + unusual + b"\r\n")
    visitors.clock.at(0.1)
    for one in (guest, hesitant):
        visitors.say(one, b"12345")
        visitors.say(one, b"6789")
    visitors.say(hesitant, b"POST /answer HTTP/1.1\r\nHost:")  # the rest does not come
    visitors.clock.at(10.0)
    assert not is_gone(hesitant)
    visitors.clock.at(10.1)
    assert is_gone(hesitant)
    visitors.clock.at(75.0)
    assert isinstance(guest.transport, Gathering)
    assert not guest.transport.is_closing()
    visitors.clock.at(75.1)
    assert guest.transport.told[-1] == "close"


def test_a_client_that_begins_its_next_request_is_still_seen_to_hang_up(visitors: Visitors) -> None:
    """asyncio notices the end of a connection only while it reads."""
    guest = visitors.come()
    assert isinstance(guest.transport, Gathering)
    guest.transport.pause_reading = pausing = Mock()  # type: ignore[method-assign]
    visitors.say(guest, b"POST /work HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx\r\n")
    pausing.assert_not_called()
    visitors.say(guest, b"x" * HIGH_WATER_LIMIT)
    pausing.assert_called_once()


def test_the_one_that_is_silent_longest_makes_room(visitors: Visitors) -> None:
    first = visitors.come()
    visitors.clock.at(0.5)
    second = visitors.come()
    assert not is_gone(first)
    assert not is_gone(second)
    visitors.clock.at(1.0)
    visitors.ask(first, "answer")
    visitors.clock.at(2.0)
    third = visitors.come()
    assert [is_gone(one) for one in (first, second, third)] == [False, True, False]
    second.connection_lost(None)
    for one in (first, third):
        visitors.ask(one, "work")
    fourth = visitors.come()  # nobody is silent but itself
    assert [is_gone(one) for one in (first, third, fourth)] == [False, False, True]


def test_rubbish_gets_a_sentence_as_long_as_there_is_no_answer(visitors: Visitors) -> None:
    stranger, guest = visitors.come(), visitors.come()
    visitors.say(stranger, b"rubbish\r\n\r\n")
    assert isinstance(stranger.transport, Gathering)
    answer, end = stranger.transport.told
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"not_http"' in answer
    assert end == "close"
    visitors.say(guest, b"POST /begin HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    visitors.say(guest, b"rubbish\r\n")  # where the length of a chunk stands
    assert is_gone(guest)
