"""What an unlucky or hostile day brings to the asgi engine: lost and hung workers, silent clients, a short drain."""

import contextlib
import os
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from robust.export.baselines import write_baseline

from robustinfer import Predictor
from robustinfer.baseline import Baseline

from ...waiting import PATIENCE, eventually
from ..conftest import TOKEN, Server, serving
from ..models import hanging_model

pytestmark = pytest.mark.server

Array = np.ndarray[Any, Any]


def connection(server: Server) -> socket.socket:
    parts = urlsplit(server.url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=PATIENCE)


def status(server: Server, image: Array, token: str | None) -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    body = {"image": image.tolist(), "n": 500}
    return httpx.post(f"{server.url}/predictions/tiny", json=body, headers=headers, timeout=PATIENCE).status_code


def is_told_to_be_too_slow(server: Server) -> bool:
    """What becomes of a client that sends its head, and no more than the beginning of a body."""
    head = f"POST /predictions/tiny HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n\r\n"
    with connection(server) as slow, contextlib.suppress(ConnectionError):
        slow.sendall(head.encode() + b"{")
        return slow.recv(65_536).startswith(b"HTTP/1.1 408 ")
    return False


def is_answered(server: Server, image: Array) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return status(server, image, TOKEN) == 200
    return False


def test_silent_clients_are_disconnected_and_the_last_spans_are_sent(tiny: Path, image: Array, tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text("read_timeout = 1.0\nconnections = 20\n")
    traced = {"OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_SCHEDULE_DELAY": "3600000"}  # at the end, or never
    with serving(tmp_path, str(tiny), "--config", str(config), environment=traced, engine="asgi") as server:
        # Whoever says nothing, or not all of it, is disconnected; and when there are too many, the oldest is.
        silent = [connection(server) for _ in range(60)]
        silent[-1].sendall(b"POST /predictions/tiny HTTP/1.1\r\nHost:")
        # A machine that stalls for a second is too slow with its head, too, or with a good request: it tries again.
        eventually(lambda: is_told_to_be_too_slow(server))
        for one in silent:
            with one, contextlib.suppress(ConnectionError):
                assert one.recv(1) == b""
        eventually(lambda: is_answered(server, image))
        assert server.stop() == 0
        assert server.log.read_text().count("robust.request_id") >= 2


def test_a_worker_that_cannot_come_back_ends_the_server_with_a_reason(tiny: Path, tmp_path: Path) -> None:
    model = Path(shutil.copy(tiny, tmp_path / "tiny.onnx"))
    with serving(tmp_path, str(model), token=None, engine="asgi") as server:
        eventually(server.is_ready)
        model.write_bytes(b"another file")
        os.kill(server.workers()[0], signal.SIGKILL)
        assert server.process.wait(PATIENCE) == 1
        assert server.group() == []
        text = server.log.read_text()
        assert "worker failed" in text
        assert "A worker cannot start" in text


def test_a_drain_that_is_cut_short_says_so(tiny: Path, image: Array, tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text("max_n = 100_000_000\nmax_deadline = 3600\ndrain_timeout = 0.5\n")
    with serving(tmp_path, str(tiny), "--config", str(config), token=None, engine="asgi") as server:

        def ask() -> None:
            with contextlib.suppress(httpx.HTTPError), server.http() as http:  # cut off, as it should be
                # With a deadline nobody asks how long so many samples take, by what a busy machine measured.
                body = {"image": image.tolist(), "n": 100_000_000, "deadline": 3600.0}
                http.post("/predictions/tiny", json=body, timeout=PATIENCE)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        eventually(lambda: server.in_hand() == 3)
        eventually(server.is_ready)
        assert httpx.get(f"{server.url}/predictions/tiny", timeout=PATIENCE).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 1
        assert "3 accepted requests were cut off" in server.log.read_text()
        for thread in threads:
            thread.join(PATIENCE)


@pytest.mark.slow
def test_a_worker_that_hangs_is_replaced(image: Array, tmp_path: Path) -> None:
    """Stopped as a whole, or with an engine that never comes back while its event loop is well."""
    config = tmp_path / "serve.toml"
    config.write_text("watch_timeout = 8.0\n")
    model = hanging_model(tmp_path / "tiny.onnx")
    grey, white = image // 2, np.full((8, 8), 255, dtype=np.uint8)
    with serving(tmp_path, str(model), "--config", str(config), token=None, engine="asgi") as server:

        def replaced(worker: int, how: str) -> None:
            began = time.monotonic()
            # It is not ready from some seconds before its end until the next one is; its port answers all the while.
            eventually(lambda: not server.is_ready())
            eventually(lambda: server.workers() not in ([], [worker]))
            assert status(server, grey, None) == 200
            sys.stdout.write(f"\n{how}: the next worker answered {time.monotonic() - began:.1f} s later\n")
            eventually(server.is_ready)

        (worker,) = server.workers()
        os.kill(worker, signal.SIGSTOP)
        replaced(worker, "stopped")

        def ask() -> None:
            with contextlib.suppress(httpx.TransportError):  # nobody answers this
                status(server, white, None)

        (worker,) = server.workers()
        asking = threading.Thread(target=ask)
        asking.start()
        replaced(worker, "blocked engine")
        asking.join(PATIENCE)
        assert server.stop() == 0
        assert server.log.read_text().count("made no progress for") == 2


@pytest.mark.slow
def test_a_worker_that_dies_again_and_again_is_given_up(tiny: Path, tmp_path: Path) -> None:
    with serving(tmp_path, str(tiny), token=None, engine="asgi") as server:

        def is_over() -> bool:
            for pid in server.workers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return server.process.poll() is not None

        eventually(is_over)
        assert server.process.wait(PATIENCE) == 1
        assert "A worker died 5 times" in server.log.read_text()


def test_two_workers_share_the_port_and_drift_is_exported(
    tiny: Path, image: Array, predictor: Predictor, tmp_path: Path
) -> None:
    held_out = [predictor.certify(image, n=500, seed=seed) for seed in range(20)]
    model = tmp_path / "tiny.onnx"
    write_baseline(tiny, model, Baseline.of(held_out))
    between = np.full((8, 8), 191, dtype=np.uint8)  # where two classes have nearly equal scores
    assert all(predictor.certify(between, n=500, seed=seed).abstained for seed in range(24))
    with serving(tmp_path, str(model), "--workers", "2", token=None, engine="asgi") as server:
        workers = server.workers()
        assert len(workers) == 2
        for seed in range(24):  # each on a connection of its own, which the kernel gives to one of the two
            with server.client() as client:
                client.certify(between, n=500, seed=seed)

        def metrics(name: str) -> dict[str, float]:
            lines = httpx.get(server.metrics, timeout=PATIENCE).text.splitlines()
            found = (line.rpartition(" ") for line in lines if line.startswith(name))
            return {labels.partition("{")[0]: float(value) for labels, _, value in found}

        # One of the two has answered at least twelve, and compares after every ten.
        assert metrics("robust_drift")["robust_drift_answers"] in (10, 20)
        assert metrics("robust_drift")["robust_drift_abstention"] == 1.0  # the baseline has none
        # What a worker has counted outlives it, what it has seen lately does not.
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        eventually(lambda: not metrics("robust_drift"))
        assert metrics("robust_abstentions_total") == {"robust_abstentions_total": 24}
