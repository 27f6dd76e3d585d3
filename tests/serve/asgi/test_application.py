"""The application of a worker in this process: traces, slow bodies, and large pictures that keep nobody waiting."""

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from robust.serve.asgi.application import Application
from robust.serve.asgi.bodies import Bodies
from robust.serve.asgi.counter import Counter
from robust.serve.asgi.tracing import Tracing
from robust.serve.service.decoding import LargePicture
from robust.serve.service.desk import Desk
from robust.serve.service.limits import Limits
from robust.serve.service.refusals import Refusal
from robust.serve.service.state import State
from starlette.types import Receive

from robustinfer import Predictor

from ...waiting import PATIENCE

Array = np.ndarray[Any, Any]


@pytest.fixture
def counter(predictor: Predictor) -> Iterator[Counter]:
    """The counter of a model, with one thread that reads."""
    with ThreadPoolExecutor(1) as readers:
        desk = Desk(predictor, name="tiny", limits=Limits(allow_seeds=True), state=State(None))
        yield Counter(desk, readers, version="1", most=99)


@contextlib.asynccontextmanager
async def asking(counter: Counter, tracing: Tracing) -> Any:
    application = Application(
        {"tiny": counter}, state=State(None), max_body=1 << 20, read_seconds=PATIENCE, tracing=tracing
    )
    transport = httpx.ASGITransport(application.gate)
    async with httpx.AsyncClient(transport=transport, base_url="http://x", timeout=PATIENCE) as http:
        yield http


def asked(counter: Counter, tracing: Tracing, image: Array) -> list[httpx.Response]:
    """A good request whose sender has a trace, a bad one, and one at which the engine fails."""

    async def ask() -> list[httpx.Response]:
        async with asking(counter, tracing) as http:
            parent = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
            good = await http.post("/predictions/tiny", json={"image": image.tolist(), "n": 500}, headers=parent)
            events = await http.post("/predictions/tiny?stream=1", json={"image": image.tolist(), "n": 500})
            bad = await http.post("/predictions/tiny", content=b"nothing")
            counter.desk.open = broken  # type: ignore[method-assign]
            return [good, events, bad, await http.post("/predictions/tiny", content=b"nothing")]

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("the engine is broken")

    return asyncio.run(ask())


def test_each_request_is_a_span(counter: Counter, image: Array) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    answers = asked(counter, Tracing(provider), image)
    spans: tuple[ReadableSpan, ...] = exporter.get_finished_spans()
    assert [answer.status_code for answer in answers] == [200, 200, 415, 500]
    assert [dict(span.attributes or {})["http.response.status_code"] for span in spans] == [200, 200, 415, 500]
    first = dict(spans[0].attributes or {})
    assert first["robust.request_id"] == answers[0].headers["x-request-id"]
    assert (first["robust.model"], first["robust.mode"], first["http.request.method"]) == ("tiny", "certify", "POST")
    samples = answers[0].json()["samples_used"]
    assert first["robust.samples"] == dict(spans[1].attributes or {})["robust.samples"] == samples
    assert spans[0].kind == SpanKind.SERVER
    # The caller's trace goes on here; the others begin their own.
    assert spans[0].parent is not None
    assert (spans[0].parent.trace_id, spans[0].parent.span_id) == (int("a" * 32, 16), int("b" * 16, 16))
    assert spans[1].parent is None
    assert [span.status.status_code == StatusCode.ERROR for span in spans] == [False, False, False, True]
    # Nothing of the image or of the failure is in them.
    assert not [span for span in spans if span.events]


def test_nothing_breaks_without_the_sdk(
    counter: Counter, image: Array, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)  # as if it were not installed
    with pytest.raises(ImportError):
        import opentelemetry  # noqa: F401
    assert [answer.status_code for answer in asked(counter, Tracing.of_environment({}), image)] == [200, 200, 415, 500]
    recorded: list[dict[str, Any]] = []
    monkeypatch.setattr("robust.serve.asgi.tracing.logs.record", lambda event, **more: recorded.append({event: more}))
    for variables in ({"OTEL_TRACES_EXPORTER": "console"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}):
        tracing = Tracing.of_environment(variables)
        with tracing.span(None, "GET"):  # type: ignore[arg-type]
            tracing.note(model="", mode="", status=200, samples=0)
        tracing.close()
    assert len(recorded) == 2
    assert "install opentelemetry-sdk" in str(recorded[0])


def sending(*pieces: bytes, begun: asyncio.Event | None = None, then: asyncio.Event | None = None) -> Receive:
    """A client that sends these pieces, `begun` after the first, and ends when the event `then` comes."""
    left = list(pieces)

    async def receive() -> dict[str, Any]:
        if begun is not None:
            begun.set()
        if left:
            piece = left.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(left) or then is not None}
        assert then is not None
        await then.wait()
        return {"type": "http.request", "body": b"", "more_body": False}

    return receive


def test_slow_clients_keep_nobody_from_sending_a_body() -> None:
    async def check() -> None:
        bodies = Bodies(limit=100, seconds=PATIENCE)
        begun, end, late = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def take(receive: Receive) -> int:
            async with bodies.read(receive) as body:
                return len(body)

        slow = [asyncio.create_task(take(sending(b"{", then=end))) for _ in range(2000)]
        full = [asyncio.create_task(take(sending(b"x" * 99, then=end))) for _ in range(70)]  # there is room for 64
        full.append(asyncio.create_task(take(sending(b"x" * 99, begun=begun, then=end))))
        await begun.wait()
        assert await take(sending(b"whole")) == 5
        waiting = asyncio.create_task(take(sending(b"one", b"two", begun=late)))
        await late.wait()
        assert not waiting.done()  # the rest of a body waits for room
        end.set()
        assert await asyncio.gather(*slow, *full, waiting) == [1] * 2000 + [99] * 71 + [6]
        with pytest.raises(Refusal, match="at most 100 bytes"):
            await take(sending(b"x" * 60, b"x" * 60))
        assert await take(sending(b"one", b"two")) == 6

    asyncio.run(check())


def test_nobody_waits_for_a_large_picture_of_somebody_else(counter: Counter, image: Array) -> None:
    free = threading.Event()
    decode = counter.desk.decoder.decode

    def slowly(content: bytes, *, small_only: bool = False, **more: Any) -> Array:
        if small_only:
            raise LargePicture
        assert free.wait(PATIENCE)
        return decode(content, **more)

    counter.desk.decoder.decode = slowly  # type: ignore[method-assign]

    async def ask() -> tuple[int, int]:
        async with asking(counter, Tracing()) as http:
            from ..service.test_reading import picture

            large = asyncio.create_task(http.post("/predictions/tiny", content=picture("PNG", (8, 8))))
            small = await http.post("/predictions/tiny", json={"image": image.tolist(), "n": 500})
            assert not large.done()
            free.set()
            return small.status_code, (await large).status_code

    assert asyncio.run(ask()) == (200, 200)


def test_what_was_read_is_not_kept(counter: Counter, image: Array) -> None:
    from robust.serve.service.exchange import Exchange, Incoming

    body = json.dumps({"image": image.tolist(), "n": 500}).encode()
    exchange = Exchange(Incoming({"body": body}))
    counter.desk.open(exchange, until=float("inf"))
    assert len(exchange.requests) == 1
    assert exchange.incoming.size == 0


@pytest.mark.parametrize("broken", [False, True])
def test_a_small_array_is_read_at_once_and_a_larger_one_alike(
    counter: Counter, image: Array, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same body on both sides of the limit: read in the event loop's thread, or in another; the answer is one."""
    from ..service.test_reading import npy

    body = npy(image)[: -1 if broken else None]
    read_in: list[str] = []
    opened = counter.desk.open

    def watched(*arguments: Any, **more: Any) -> None:
        read_in.append(threading.current_thread().name)
        opened(*arguments, **more)

    counter.desk.open = watched  # type: ignore[method-assign]

    async def ask() -> list[httpx.Response]:
        answers = []
        async with asking(counter, Tracing()) as http:
            for limit in (len(body), len(body) - 1):
                monkeypatch.setattr("robust.serve.asgi.counter._SMALL", limit)
                answers.append(await http.post("/predictions/tiny?n=500&seed=3", content=body))
        return answers

    here, elsewhere = asyncio.run(ask())
    assert read_in[0] == threading.main_thread().name != read_in[1]
    assert here.status_code == elsewhere.status_code == (422 if broken else 200)
    changing = {"request_id", "seconds", "created"}
    first, second = (answer.json().get("error", answer.json()) for answer in (here, elsewhere))
    assert {name: first[name] for name in first if name not in changing} == {
        name: second[name] for name in second if name not in changing
    }
    assert ("bytes follow" in first["message"]) if broken else (first["label"] == 2 and first["radius"] > 0)
    assert counter.in_hand == 0


def test_only_arrays_are_read_at_once(counter: Counter, image: Array) -> None:
    """A picture or a JSON document of few bytes may take long, and never does so in the event loop."""
    from ..service.test_reading import picture

    read_in: list[str] = []
    opened = counter.desk.open

    def watched(*arguments: Any, **more: Any) -> None:
        read_in.append(threading.current_thread().name)
        opened(*arguments, **more)

    counter.desk.open = watched  # type: ignore[method-assign]

    async def ask() -> list[int]:
        async with asking(counter, Tracing()) as http:
            bodies = (picture("PNG", (8, 8)), json.dumps({"image": image.tolist()}).encode())
            return [(await http.post("/predictions/tiny?n=500", content=body)).status_code for body in bodies]

    assert asyncio.run(ask()) == [200, 200]
    assert threading.main_thread().name not in read_in
