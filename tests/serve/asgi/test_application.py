"""The application of a worker in this process: traces, slow bodies, and large pictures that keep nobody waiting."""

import asyncio
import contextlib
import json
import sys
import threading
from types import SimpleNamespace
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
from robust.serve.asgi.counter import _FRESH, Counter
from robust.serve.asgi.tracing import Tracing
from robust.serve.service.decoding import LargePicture
from robust.serve.service.refusals import Refusal
from robust.serve.service.state import State
from starlette.types import Receive

from ...waiting import PATIENCE, eventually

Array = np.ndarray[Any, Any]


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
    Tracing.of_environment({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"})
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
    free, decoding = threading.Event(), threading.Event()
    decode = counter.desk.decoder.decode

    def slowly(content: bytes, *, small_only: bool = False, **more: Any) -> Array:
        if small_only:
            raise LargePicture
        decoding.set()
        assert free.wait(PATIENCE)
        return decode(content, **more)

    counter.desk.decoder.decode = slowly  # type: ignore[method-assign]

    async def ask() -> tuple[int, int]:
        async with asking(counter, Tracing()) as http:
            from ..service.test_reading import picture

            large = asyncio.create_task(http.post("/predictions/tiny", content=picture("PNG", (8, 8))))
            assert await asyncio.to_thread(decoding.wait, PATIENCE)
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


def reading_threads(counter: Counter) -> list[str]:
    """The names of the threads in which requests are read from now on."""
    names: list[str] = []
    opened = counter.desk.open

    def watched(*arguments: Any, **more: Any) -> None:
        names.append(threading.current_thread().name)
        opened(*arguments, **more)

    counter.desk.open = watched  # type: ignore[method-assign]
    return names


@pytest.mark.parametrize("broken", [False, True])
def test_a_small_array_is_read_at_once_and_a_larger_one_alike(
    counter: Counter, image: Array, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same body on both sides of the limit: read in the event loop's thread, or in another; the answer is one."""
    from ..service.test_reading import npy

    body = npy(image)[: -1 if broken else None]
    read_in = reading_threads(counter)

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

    read_in = reading_threads(counter)

    async def ask() -> list[int]:
        async with asking(counter, Tracing()) as http:
            bodies = (picture("PNG", (8, 8)), json.dumps({"image": image.tolist()}).encode())
            return [(await http.post("/predictions/tiny?n=500", content=body)).status_code for body in bodies]

    assert asyncio.run(ask()) == [200, 200]
    assert threading.main_thread().name not in read_in


def test_a_request_that_is_taken_in_half_leaves_no_work_behind(
    counter: Counter, image: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two images, at the second of which the engine fails: nobody waits for the first."""
    submitted: list[Any] = []
    submit = counter.desk.predictor.submit

    def once(*arguments: Any, **more: Any) -> Any:
        if submitted:
            raise RuntimeError("the engine is broken")
        submitted.append(submit(*arguments, **more))
        return submitted[0]

    monkeypatch.setattr(counter.desk.predictor, "submit", once)
    tensor = {"name": "image", "datatype": "UINT8", "shape": [2, 1, 8, 8], "data": [image.tolist()] * 2}

    async def ask() -> int:
        async with asking(counter, Tracing()) as http:
            body = {"inputs": [tensor], "parameters": {"n": 10**9 // 2}}  # not done before it is cancelled
            return int((await http.post("/v2/models/tiny/infer", json=body)).status_code)

    try:
        status = asyncio.run(ask())
    finally:
        cancelled = submitted[0].cancelled()
        submitted[0].cancel()  # or, if it was not, the engine would work on it beside all other tests
    assert (status, cancelled) == (500, True)


def test_a_wrong_word_for_stream_costs_nothing(counter: Counter, image: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before any work is begun, which nobody would wait for."""
    monkeypatch.setattr(counter.desk.predictor, "submit", None)

    async def ask() -> httpx.Response:
        async with asking(counter, Tracing()) as http:
            answer: httpx.Response = await http.post(
                "/predictions/tiny?stream=perhaps", json={"image": image.tolist(), "n": 50_000}
            )
            return answer

    answer = asyncio.run(ask())
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "wrong_type")


def test_what_the_watch_of_a_worker_looks_at(counter: Counter, image: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are counted, nothing is in work after them; only who had the engine alone tells its speed."""
    learnt: list[float] = []
    monkeypatch.setattr(counter.desk, "learn", lambda samples, seconds: learnt.append(seconds))

    async def ask(times: int) -> None:
        async with asking(counter, Tracing()) as http:
            body = {"image": image.tolist(), "n": 500}
            answers = await asyncio.gather(*(http.post("/predictions/tiny", json=body) for _ in range(times)))
            assert [answer.status_code for answer in answers] == [200] * times

    asyncio.run(ask(1))
    assert counter.answered == 1
    assert counter.drawn is None
    assert learnt[0] > 0
    monkeypatch.setattr(counter.desk.predictor.engine, "scores", waiting_for_all(counter, 3))
    asyncio.run(ask(3))
    assert counter.answered == 4
    assert counter.drawn is None
    assert learnt[1:] == [0.0, 0.0, 0.0]


def waiting_for_all(counter: Counter, count: int) -> Any:
    """The engine's scores, whose first run waits until so many requests wait for it."""
    scores, together = counter.desk.predictor.engine.scores, threading.Event()

    def wait(images: Array) -> Array:
        if not together.is_set():
            eventually(lambda: len(counter._submitted) == count)
            together.set()
        return scores(images)

    return wait


def test_a_fresh_success_is_health(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    async def predict_once() -> None:
        asked.append(True)
        raise RuntimeError("the engine is broken")

    monkeypatch.setattr(counter, "predict_once", predict_once)
    counter.desk.succeeded()
    clock = SimpleNamespace(monotonic=lambda: counter.desk.last_success + 0.9 * _FRESH)
    monkeypatch.setattr("robust.serve.asgi.counter.time", clock)
    asyncio.run(counter.check_health())
    assert not asked
    clock.monotonic = lambda: counter.desk.last_success + 1.1 * _FRESH
    with pytest.raises(Refusal, match="test prediction failed"):
        asyncio.run(counter.check_health())
    assert asked


def test_no_more_are_in_hand_than_allowed(counter: Counter) -> None:
    few = Counter(counter.desk, counter._readers, version="1", most=2)
    with few.admitted(), few.admitted():
        with pytest.raises(Refusal, match="2 requests in hand"), few.admitted():
            pass
        assert few.in_hand == 2
    assert few.in_hand == 0


def test_a_wrong_method_is_told_the_right_ones(counter: Counter) -> None:
    async def ask() -> httpx.Response:
        async with asking(counter, Tracing()) as http:
            answer: httpx.Response = await http.delete("/models/tiny/verify")
            return answer

    answer = asyncio.run(ask())
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "wrong_method")
    assert answer.headers["allow"] == "POST"


def test_a_field_of_the_query_does_not_stand_in_the_form_as_well(counter: Counter, image: Array) -> None:
    from ..service.test_reading import npy

    async def ask(field: str) -> httpx.Response:
        async with asking(counter, Tracing()) as http:
            files: Any = {"image": npy(image), field: (None, b"60")}
            response: httpx.Response = await http.post("/predictions/tiny?n=500", files=files)
            return response

    twice = asyncio.run(ask("n"))
    assert (twice.status_code, twice.json()["error"]["code"]) == (400, "repeated_field")
    assert twice.json()["error"]["message"] == "The field 'n' is in both the query and the body."
    assert asyncio.run(ask("n0")).status_code == 200
