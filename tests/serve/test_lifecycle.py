"""How a server starts, loses processes, drains and stops. Recovery times are printed: run with -s to see them."""

import http.client
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from robustinfer import Predictor
from robustinfer.cli.main import app
from robustinfer.errors import ClientError, RobustinferError

from ..waiting import PATIENCE, eventually
from .conftest import TORCHSERVE_IS_SLOW, Server, serving
from .torchserve.connections import port_of, read_by

pytestmark = pytest.mark.server

Array = np.ndarray[Any, Any]


def refuses_connections(url: str) -> bool:
    try:
        httpx.get(url, timeout=PATIENCE)
    except httpx.ConnectError:
        return True
    except httpx.TransportError:
        return False
    return False


def assert_nothing_left(server: Server, folder: Path) -> None:
    assert server.group() == []
    assert refuses_connections(server.url)
    assert refuses_connections(server.metrics)
    assert not folder.exists()


class Load:
    """Clients that ask the same questions again and again, and remember what they were told."""

    def __init__(self, server: Server, image: Array, *, clients: int, n: int, retries: int) -> None:
        self.wrong: list[str] = []
        self.good = 0
        self.failed: list[ClientError] = []
        self._expected: dict[int, Any] = {}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._ask, args=(server, image, seed, n, retries)) for seed in range(clients)
        ]

    def expect(self, predictor: Predictor, image: Array, n: int) -> None:
        self._expected = {seed: predictor.certify(image, n=n, seed=seed).counts for seed in range(len(self._threads))}

    def _ask(self, server: Server, image: Array, seed: int, n: int, retries: int) -> None:
        with server.client(retries=retries) as client:
            while not self._stop.is_set():
                try:
                    counts = client.certify(image, n=n, seed=seed).counts
                except ClientError as error:
                    with self._lock:
                        self.failed.append(error)
                    continue
                with self._lock:
                    self.good += 1
                    if counts != self._expected[seed]:
                        self.wrong.append(f"seed {seed}: {counts}")

    @contextmanager
    def running(self) -> Iterator["Load"]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(PATIENCE)


@TORCHSERVE_IS_SLOW
def test_too_much_load_is_refused_and_sigterm_drains_and_leaves_nothing(
    tiny: Path, image: Array, predictor: Predictor, tmp_path: Path, engine: str
) -> None:
    config = tmp_path / "serve.toml"
    own = f"read_timeout = {PATIENCE}\n" if engine == "asgi" else ""
    config.write_text(
        f"queue = 4\nbatch_size = 1\nmax_n = 100_000_000\nmax_seconds = 3600\nmax_deadline = 3600\n"
        f"drain_timeout = {PATIENCE}\n{own}"
    )
    with serving(tmp_path, str(tiny), "--config", str(config), token=None, engine=engine) as server:
        assert len(server.workers()) == 1
        folder = server.folder()
        if engine == "torchserve":
            refuse_what_does_not_fit(server, image)
            answers = stopped_at_work(server, image)
        else:
            refuse_while_others_compute(server, image)
            answers = stopped_while_bodies_arrive(server, image)
        # What had arrived was answered in full, by the same votes as ever.
        assert answers == {seed: predictor.certify(image, n=200_000, seed=seed).counts for seed in range(4)}
        assert server.process.wait(PATIENCE) == 0
        assert_nothing_left(server, folder)


def stopped_at_work(server: Server, image: Array) -> dict[int, Any]:
    """The answers to four requests that the server has read when it is told to stop."""
    answers: dict[int, Any] = {}

    def ask(seed: int) -> None:
        with server.client(retries=0) as client:
            answers[seed] = client.certify(image, n=200_000, seed=seed).counts

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    # A worker has one of them in hand, its front end has read the others; or all of them were quicker than this look at
    # them, which takes a while on a busy machine.
    eventually(lambda: len(answers) == 4 or (server.in_hand() > 0 and read_by(port_of(server.url)) + len(answers) >= 4))
    server.process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join(PATIENCE)
    return answers


def stopped_while_bodies_arrive(server: Server, image: Array) -> dict[int, Any]:
    """The answers to four requests of which half has arrived when the server is told to stop, and half afterwards."""
    address = urlsplit(server.url)
    held = []
    for seed in range(4):
        body = json.dumps({"image": image.tolist(), "n": 200_000, "seed": seed}).encode()
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE)
        connection.putrequest("POST", "/predictions/tiny")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body[:20])
        held.append((connection, body[20:]))
    eventually(lambda: server.in_hand() == 4)
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: refuses_work(server, image))
    answers = {}
    for seed, (connection, rest) in enumerate(held):
        connection.send(rest)
        response = connection.getresponse()
        assert response.status == 200
        answers[seed] = tuple(json.loads(response.read())["counts"])
        connection.close()
    return answers


def refuses_work(server: Server, image: Array) -> bool:
    """Whether a request that comes now is too late: it is told so, or nobody listens any more."""
    try:
        with server.http() as opened:
            return opened.post("/predictions/tiny", json={"image": image.tolist(), "n": 1000}).status_code == 503
    except httpx.TransportError:
        return True


def refuse_what_does_not_fit(server: Server, image: Array) -> None:
    """While the worker stands still, it and the queue of four hold up to five requests; the others are refused."""
    told: queue.Queue[int] = queue.Queue()

    def ask() -> None:
        with server.http() as http:
            told.put(http.post("/predictions/tiny", json={"image": image.tolist(), "n": 1000}).status_code)

    threads = [threading.Thread(target=ask) for _ in range(12)]
    (worker,) = server.workers()
    os.kill(worker, signal.SIGSTOP)
    try:
        for thread in threads:
            thread.start()
        assert [told.get(timeout=PATIENCE) for _ in range(7)] == [503] * 7
    finally:
        os.kill(worker, signal.SIGCONT)
    rest = sorted(told.get(timeout=PATIENCE) for _ in range(5))
    for thread in threads:
        thread.join(PATIENCE)
    # If the worker had not yet taken its request, the queue had no room for the fifth.
    assert rest[:4] == [200] * 4
    assert rest[4] in (200, 503)


def refuse_while_others_compute(server: Server, image: Array) -> None:
    """One request is in work and four wait: the others are refused at once, and let in when those five hang up."""
    # With a deadline nobody asks how long so many samples take, by what a busy machine measured.
    body = json.dumps({"image": image.tolist(), "n": 100_000_000, "deadline": 3600.0}).encode()
    head = f"POST /predictions/tiny HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    question = f"{head}Content-Type: application/json\r\n\r\n".encode() + body
    address = urlsplit(server.url)
    held = [socket.create_connection((address.hostname or "", address.port or 0), PATIENCE) for _ in range(5)]
    for connection in held:
        connection.sendall(question)
    eventually(lambda: server.in_hand() == 5)
    with server.http() as http:
        told = [http.post("/predictions/tiny", json={"image": image.tolist(), "n": 1000}) for _ in range(7)]
    assert [answer.status_code for answer in told] == [503] * 7
    assert {(answer.json()["error"]["code"], answer.headers["Retry-After"]) for answer in told} == {("full", "1")}
    for connection in held:
        connection.close()
    eventually(lambda: server.in_hand() == 0)


@pytest.mark.slow
def test_ctrl_c_stops_as_well_and_ipv6_is_spoken(tiny: Path, tmp_path: Path, engine: str) -> None:
    host = "::1" if Path("/proc/net/if_inet6").exists() else "127.0.0.1"
    with serving(tmp_path, str(tiny), "--host", host, "--metrics-host", host, token=None, engine=engine) as server:
        folder = server.folder()
        # A server without authorisation answers anybody.
        assert httpx.get(f"{server.url}/predictions/tiny", timeout=PATIENCE).status_code == 200
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE) == 0
        assert_nothing_left(server, folder)


@TORCHSERVE_IS_SLOW
def test_a_killed_worker_is_replaced_and_another_killed_process_takes_the_server_with_it(
    tiny: Path, image: Array, predictor: Predictor, tmp_path: Path, engine: str
) -> None:
    with serving(tmp_path, str(tiny), token=None, engine=engine) as server:
        load = Load(server, image, clients=4, n=20_000, retries=10_000)
        load.expect(predictor, image, 20_000)
        with load.running():
            eventually(lambda: load.good >= 8)
            (victim,) = server.workers()
            killed = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            eventually(lambda: server.workers() not in ([], [victim]))
            good = load.good
            eventually(lambda: load.good > good)
            recovery = time.monotonic() - killed
        sys.stdout.write(f"\n{engine}: worker killed: a new one answered {recovery:.1f} s later\n")
        assert load.wrong == []
        assert load.failed == [], [str(error) for error in load.failed[:3]]
        if engine == "torchserve":
            kill_the_server(server, server.pid, image, predictor, code=1)  # its virtual machine
        else:
            kill_the_server(server, server.process.pid, image, predictor, code=-signal.SIGKILL)


@pytest.mark.slow  # its sibling above kills the virtual machine
def test_a_killed_launcher_takes_the_server_with_it(
    tiny: Path, image: Array, predictor: Predictor, tmp_path: Path
) -> None:
    with serving(tmp_path, str(tiny), token=None) as server:
        kill_the_server(server, server.process.pid, image, predictor, code=-signal.SIGKILL)


def kill_the_server(server: Server, victim: int, image: Array, predictor: Predictor, *, code: int) -> None:
    """Kill one of its processes under load: all of them end, and no client was told anything wrong."""
    load = Load(server, image, clients=4, n=20_000, retries=0)
    load.expect(predictor, image, 20_000)
    with load.running():
        eventually(lambda: load.good >= 4)
        os.kill(victim, signal.SIGKILL)
        ended_with = server.process.wait(PATIENCE)
        ended = eventually(lambda: server.group() == [])
    sys.stdout.write(f"\nall processes of the server were gone {ended:.1f} s after the command\n")
    assert ended_with == code
    assert load.wrong == []
    assert load.failed
    assert refuses_connections(server.url)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["missing.onnx"], "missing.onnx"),
        (["{tiny}", "{tiny}"], "NAME=MODEL"),
        (["1st={tiny}"], "starts with a letter"),
        (["{tiny}", "--auth", "maybe"], "token or none"),
        (["{tiny}", "--workers", "0"], "positive"),
        (["{tiny}", "--device", "tpu"], "auto, cpu or cuda"),
        (["{tiny}", "--port", "{taken}"], "Cannot listen"),
    ],
)
def test_mistakes_are_refused_before_anything_starts(
    tiny: Path, arguments: list[str], sentence: str, unused_port_holder: int
) -> None:
    values = {"tiny": str(tiny), "taken": str(unused_port_holder)}
    done = CliRunner().invoke(app, ["serve", *(argument.format(**values) for argument in arguments)])
    assert isinstance(done.exception, RobustinferError)  # which the command line turns into one sentence
    assert sentence in str(done.exception)


@pytest.fixture
def unused_port_holder() -> Iterator[int]:
    """A port that another program has."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield int(taken.getsockname()[1])
