"""Plain requests pass h11 by: what is taken for plain, h11 reads the same way, and their answers are those of h11."""

import asyncio
import re
from typing import Any
from unittest.mock import patch

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st
from robust.serve.asgi import connections
from robust.serve.asgi.connections import LimitedProtocol, limited
from robust.serve.asgi.plain import HANG_UP, PlainRequest, plain_request
from robust.serve.asgi.streams import unless_gone
from starlette.requests import ClientDisconnect
from uvicorn import Config
from uvicorn.server import ServerState

from ...waiting import PATIENCE, turn
from .test_connections import Transport

_GOOD = b"POST /models/cnn/invoke?n=5 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"

_UNUSUAL = {
    "two lengths": (b"Content-Length: 3", b"Content-Length: 3\r\nTransfer-Encoding: chunked"),
    "two lengths the other way round": (b"Content-Length: 3", b"Transfer-Encoding: chunked\r\nContent-Length: 3"),
    "chunks": (b"Content-Length: 3", b"Transfer-Encoding: chunked"),
    "a length twice": (b"Content-Length: 3", b"Content-Length: 3\r\nContent-Length: 3"),
    "two different lengths": (b"Content-Length: 3", b"Content-Length: 3\r\ncontent-length: 30"),
    "a list of lengths": (b"Content-Length: 3", b"Content-Length: 3, 3"),
    "no length": (b"Content-Length: 3", b"Accept: */*"),
    "an empty length": (b"Content-Length: 3", b"Content-Length:"),
    "a length with a sign": (b"Content-Length: 3", b"Content-Length: +3"),
    "a length with an underscore": (b"Content-Length: 3", b"Content-Length: 1_0"),
    "a length in hexadecimal": (b"Content-Length: 3", b"Content-Length: 0x3"),
    "a length of other digits": (b"Content-Length: 3", "Content-Length: ٣".encode()),
    "a length without end": (b"Content-Length: 3", b"Content-Length: " + b"0" * 5000 + b"3"),
    "a large body": (b"Content-Length: 3", b"Content-Length: 65537"),
    "a space before a colon": (b"Content-Length: 3", b"Content-Length : 3"),
    "a space before a name": (b"Content-Length: 3", b" Content-Length: 3"),
    "a line that goes on": (b"Host: x", b"Host: x\r\n\tand y"),
    "a line without a colon": (b"Host: x", b"Host: x\r\nnothing"),
    "a line without a name": (b"Host: x", b"Host: x\r\n: y"),
    "a NUL in a value": (b"Host: x", b"Host: x\0y"),
    "a control character in a value": (b"Host: x", b"Host: x\x01y"),
    "a carriage return in a value": (b"Host: x", b"Host: x\ry"),
    "a line feed alone": (b"Host: x\r\n", b"Host: x\n"),
    "line feeds alone": (b"\r\n", b"\n"),
    "a carriage return alone": (b"Host: x\r\n", b"Host: x\r"),
    "no host": (b"Host: x\r\n", b""),
    "two hosts": (b"Host: x", b"Host: x\r\nHost: y"),
    "an expectation": (b"Host: x", b"Host: x\r\nExpect: 100-continue"),
    "an upgrade": (b"Host: x", b"Host: x\r\nConnection: Upgrade\r\nUpgrade: h2c"),
    "a last request": (b"Host: x", b"Host: x\r\nConnection: close"),
    "a whole URL": (b"/models", b"http://y/models"),
    "a space in an address": (b"/models/cnn", b"/models /cnn"),
    "a tab in an address": (b"/models/cnn", b"/models\t/cnn"),
    "an address that is not ASCII": (b"/models", "/é".encode()),
    "an old version": (b"HTTP/1.1", b"HTTP/1.0"),
    "a new version": (b"HTTP/1.1", b"HTTP/2.0"),
    "a version in small letters": (b"HTTP/1.1", b"http/1.1"),
    "another method": (b"POST", b"GET"),
    "a method in small letters": (b"POST", b"post"),
    "an empty line before it": (b"POST", b"\r\nPOST"),
    "half a head": (b"\r\n\r\nabc", b"\r\n"),
}


def test_a_plain_request_is_taken_apart() -> None:
    request = plain_request(_GOOD.replace(b"Host: x", b"HOST:\t x \r\nX-Empty:\r\nConnection: Keep-Alive"))
    assert request is not None
    assert (request.method, request.path, request.query) == ("POST", b"/models/cnn/invoke", b"n=5")
    assert request.headers == [
        (b"host", b"x"),
        (b"x-empty", b""),
        (b"connection", b"Keep-Alive"),
        (b"content-length", b"3"),
    ]
    assert request.length == 3


@pytest.mark.parametrize("what", _UNUSUAL)
def test_what_is_unusual_is_left_to_h11(what: str) -> None:
    usual, unusual = _UNUSUAL[what]
    assert usual in _GOOD
    assert plain_request(_GOOD) is not None
    assert plain_request(_GOOD.replace(usual, unusual)) is None


def read_by_h11(data: bytes) -> tuple[h11.Request, bytes]:
    """The first request, and its body as far as it is there."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    request, body = connection.next_event(), b""
    assert isinstance(request, h11.Request)
    while isinstance(event := connection.next_event(), h11.Data):
        body += event.data
    return request, body


_PIECES = [
    *(b"POST", b"PUT", b"GET", b" ", b"  ", b"/", b"/a?b=c", b"/%2F", b"*", b"HTTP/1.1", b"HTTP/1.0"),
    *(b"Host", b"host", b"x", b":", b"\r\n", b"\n", b"\r", b"\t", b"\0", b"\x0b", b"\x7f", b"\x85", b"\xff", b","),
    *(b"Content-Length", b"content-length: 3", b"3", b"03", b"+3", b"Transfer-Encoding", b"chunked", b"Connection"),
    *(b"keep-alive", b"close", b"Expect: 100-continue", b"abc", b"0\r\n\r\n", b"-", b"_", b"\xc2\xb2"),
]


@st.composite
def nearly_good(draw: st.DrawFn) -> bytes:
    """A good request in which a few pieces were put in, or took the place of something."""
    data = draw(st.sampled_from([_GOOD, _GOOD.replace(b"Host: x", b"Host: x\r\nAccept: */*\r\nX-Id: 7")]))
    for _ in range(draw(st.integers(0, 4))):
        begin = draw(st.integers(0, len(data)))
        end = draw(st.integers(begin, min(len(data), begin + 6)))
        data = data[:begin] + draw(st.sampled_from([b"", *_PIECES])) + data[end:]
    return data


@given(nearly_good())
def test_h11_reads_what_is_plain_in_the_same_way(data: bytes) -> None:
    found = plain_request(data)
    if found is None:
        return
    request, body = read_by_h11(data)
    assert found.method.encode() == request.method
    assert (found.path, found.query) == request.target.partition(b"?")[::2]
    assert found.headers == list(request.headers)
    assert request.http_version == b"1.1"
    assert data[found.begin :][: found.length] == body


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers with what it was asked, in the form that the address names."""
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message["more_body"]:
            break
    text = repr([scope[name] for name in sorted(scope) if name != "extensions"] + [body]).encode()
    headers = [(b"content-type", b"text/plain")]
    if scope["path"] == "/pieces":
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in (text, b"", b"more"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return
    if scope["path"] == "/two-lines":
        headers.append((b"x-id", b"1\r\nx-other: 2"))
    if scope["path"] == "/last":
        headers.append((b"connection", b"close"))
    headers.append((b"content-length", b"%d" % len(text)))
    await send({"type": "http.response.start", "status": 422, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def conversation(pieces: list[bytes], answers: int, asked: Any = None) -> tuple[list[Any], list[bool]]:
    """What the transport was told, and of each request whether it was plain."""

    kinds: list[bool] = []

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        kinds.append(HANG_UP in scope.get("extensions", {}))
        await (asked or application)(scope, receive, send)

    async def converse() -> list[Any]:
        protocol_class, state, transport = limited(header_seconds=PATIENCE, most=10), ServerState(), Transport()
        config = Config(noting, http=protocol_class, lifespan="off", log_config=None, access_log=False)
        config.load()
        protocol: LimitedProtocol = protocol_class(config=config, server_state=state, app_state={})
        protocol.connection_made(transport)
        for piece in pieces:
            if transport.is_closing():  # a real one is not read any more
                break
            protocol.data_received(piece)
            for _ in range(50):
                await turn()
        told = list(transport.told)
        protocol.connection_lost(None)
        assert state.total_requests == len(kinds) == answers
        return told

    return asyncio.run(converse()), kinds


def never(data: bytes) -> PlainRequest | None:
    """As if nothing were plain."""
    return None


def request_to(address: str, body: bytes = b"abc") -> bytes:
    return f"POST {address} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize("address", ["/a%20b?c=%20&d", "/pieces", "/last", "/%C3%A9", "/%ff"])
def test_the_answer_is_that_of_h11(address: str) -> None:
    asked = [request_to(address)]
    told, plain = conversation(asked, 1)
    with patch.object(connections, "plain_request", never):
        expected, other = conversation(asked, 1)
    assert (plain, other) == ([True], [False])
    assert _content(told[0]) == _content(expected[0])
    assert told[1:] == expected[1:]
    assert (b"connection: close" in told[0].lower()) == (address == "/last")


def _content(answer: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Status, headers in any order, and body without the frames of its pieces."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *headers = head.split(b"\r\n")
    lines = sorted(re.sub(rb"^[^:]+", lambda name: name[0].lower(), line) for line in headers)
    return status, [line for line in lines if not line.startswith(b"date:")], body


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_bodies_come_in_pieces_and_requests_before_their_turn(size: int) -> None:
    plain = request_to("/a", b"x" * 300)
    chunked = b"POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    stream = plain + plain + chunked + plain + request_to("/last") + b"rubbish"
    pieces = [stream[begin : begin + size] for begin in range(0, len(stream), size)]
    told, kinds = conversation(pieces, 5)
    with patch.object(connections, "plain_request", never):
        expected, _ = conversation(pieces, 5)
    answers, others = b"".join(told[:-1]), b"".join(expected[:-1])
    assert answers.count(b"HTTP/1.1 422") == others.count(b"HTTP/1.1 422") == 5
    assert told[-1] == expected[-1] == "close"
    if size == 1000:
        assert kinds == [True, True, False, False, False]  # what h11 has taken in, it reads


def test_no_header_of_an_answer_has_two_lines() -> None:
    told, plain = conversation([request_to("/two-lines")], 1)
    assert plain == [True]
    assert told[0].startswith(b"HTTP/1.1 500 ")
    assert b"x-other" not in told[0]


def test_a_head_in_two_pieces_is_left_to_h11_whole() -> None:
    whole = request_to("/a")
    told, plain = conversation([whole[:30], whole[30:], whole], 2)
    assert plain == [False, True]
    assert len(told) == 2


@pytest.mark.parametrize("following", [request_to("/next"), b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"])
@pytest.mark.parametrize("cut", [1, 40, 80, 120, 160, 200])
def test_the_body_of_an_answered_request_is_not_taken_for_the_next_request(following: bytes, cut: int) -> None:
    """Wherever the body is cut, and whether the request behind it in the same bytes is plain or h11's."""
    inner = request_to("/inner")
    asked: list[str] = []

    async def hasty(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    outer = request_to("/outer", inner * 4)
    head, rest = outer[: -len(inner * 4)], inner * 4 + following
    told, plain = conversation([head, rest[:cut], rest[cut:]], 2, hasty)
    assert asked == ["/outer", "/next"]
    assert plain == [True, following.startswith(b"POST")]
    assert b"".join(told).count(b"HTTP/1.1 401") == 2
    assert "close" not in told


@pytest.mark.parametrize("early", [False, True])
def test_work_ends_with_the_client_of_a_plain_request(early: bool) -> None:
    """Whether it hangs up while there is work, or before that has begun; the task goes on and learns of it."""
    log: list[str] = []

    async def working(scope: Any, receive: Any, send: Any) -> None:
        try:
            await unless_gone(asyncio.Event().wait(), scope, receive)
        except ClientDisconnect:
            await turn()  # not cancelled any more
            log.append("gone")

    async def converse() -> None:
        protocol_class = limited(header_seconds=PATIENCE, most=10)
        config = Config(working, http=protocol_class, lifespan="off", log_config=None, access_log=False)
        config.load()
        protocol: LimitedProtocol = protocol_class(config=config, server_state=ServerState(), app_state={})
        protocol.connection_made(Transport())
        protocol.data_received(request_to("/a"))
        for _ in range(0 if early else 5):
            await turn()
        protocol.connection_lost(None)
        await asyncio.wait_for(asyncio.gather(*protocol.tasks), PATIENCE)

    asyncio.run(converse())
    assert log == ["gone"]


def test_who_hangs_up_after_the_answer_cancels_nothing() -> None:
    async def quick(scope: Any, receive: Any, send: Any) -> None:
        await unless_gone(turn(), scope, receive)
        await application(scope, receive, send)
        scope["extensions"][HANG_UP].__self__.hang_up()
        await turn()
        done.append(True)

    done: list[bool] = []
    conversation([request_to("/a")], 1, quick)
    assert done == [True]
