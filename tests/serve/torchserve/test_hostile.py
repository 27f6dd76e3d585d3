"""What an unlucky or hostile day brings to TorchServe: lost files and workers, a short drain; and what watches it."""

import contextlib
import os
import shutil
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy.typing as npt
import pytest
from robust.serve.service.environment import inherited
from robust.serve.service.health_port import HealthPort
from robust.serve.service.state import State
from robust.serve.torchserve.watch import Watch

from ...waiting import PATIENCE, eventually
from ..conftest import TOKEN, serving
from ..test_secrets import certify
from .connections import port_of, read_by

Array = npt.NDArray[Any]

pytestmark = pytest.mark.server


@pytest.mark.slow
def test_a_server_whose_workers_cannot_come_back_ends_with_a_reason(tiny: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text("watch_timeout = 3.0\n")
    with serving(tmp_path, str(tiny), "--config", str(config), token=None) as server:
        assert httpx.get(f"{server.health}/ready", timeout=PATIENCE).status_code == 200
        unpacked = [path.parent for path in server.folder().rglob("model.onnx") if path.parent.name != "store"]
        assert unpacked
        for folder in unpacked:
            shutil.rmtree(folder.resolve())
        os.kill(server.workers()[0], signal.SIGKILL)
        assert server.process.wait(PATIENCE) == 1
        assert server.group() == []
        assert "has made no prediction" in server.log.read_text()


@pytest.mark.slow
def test_a_drain_that_is_cut_short_says_so(tiny: Path, image: Array, tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text("batch_size = 1\nmax_n = 100_000_000\nmax_deadline = 3600\ndrain_timeout = 0.5\n")
    with serving(tmp_path, str(tiny), "--config", str(config), token=None) as server:
        folder = server.folder()

        def ask() -> None:
            with contextlib.suppress(httpx.HTTPError):  # cut off, as it should be
                # With a deadline nobody asks how long so many samples take, by what a busy machine measured.
                certify(server, image, None, n=100_000_000, deadline=3600.0)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        eventually(lambda: any(folder.glob("state/busy-*")) and read_by(port_of(server.url)) == 3)
        # The queue is full of certificates, and readiness is told all the same.
        for _ in range(20):
            assert httpx.get(f"{server.health}/ready", timeout=PATIENCE).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 1
        assert "3 accepted requests were cut off" in server.log.read_text()
        for thread in threads:
            thread.join(PATIENCE)


def test_what_a_server_inherits() -> None:
    needed = ("PATH", "OMP_NUM_THREADS", "LC_ALL", "ORT_DISABLE_TELEMETRY", "CUDA_VISIBLE_DEVICES")
    others = ("TS_CONFIG_FILE", "DATABASE_URL", "AWS_SECRET_ACCESS_KEY", "TORCH_HUB_TOKEN", "http_proxy")
    own, foreign = dict.fromkeys(needed, "x"), dict.fromkeys(others, "x")
    assert inherited(own | foreign) == own
    assert inherited(own | foreign, also=["DATABASE_URL"]) == own | {"DATABASE_URL": "x"}


@pytest.mark.parametrize("lost", ["token.sha256", "auth", "everything"])
def test_missing_means_refuse(tmp_path: Path, lost: str) -> None:
    state = State.create(tmp_path / "state", token=TOKEN)
    assert state.permits(f"Bearer {TOKEN}")
    shutil.rmtree(tmp_path / "state") if lost == "everything" else (tmp_path / "state" / lost).unlink()
    for again in (state, State(tmp_path / "state")):
        assert not again.permits(None)
        assert not again.permits("Bearer ")
        assert again.permits(f"Bearer {TOKEN}") == (lost == "auth")
    open_to_all = State.create(tmp_path / "open", token=None)
    assert open_to_all.permits(None)


def test_the_watch_gives_up_only_on_a_server_that_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robust.serve.torchserve.watch._FRESH", PATIENCE)
    state = State.create(tmp_path / "state", token=None)
    with socket.socket() as unanswering:
        unanswering.bind(("127.0.0.1", 0))  # bound, and not listening: connections are refused
        url = f"http://127.0.0.1:{unanswering.getsockname()[1]}"
        watch = Watch(state, url, ["tiny"], patience=1e-9)  # any silence is too long
        state.succeeded("tiny")
        watch.look()
        assert watch.ready
        assert watch.failure is None
        os.utime(tmp_path / "state" / "alive-tiny", (1, 1))
        with state.busy(3):  # a long certificate
            watch.look()
            assert watch.ready
            assert watch.failure is None
        watch.look()
        assert not watch.ready
        assert watch.failure is not None  # type: ignore[unreachable]  # mypy does not know that look() changes it
        assert "'tiny'" in watch.failure


def test_the_health_port_says_what_it_is_told() -> None:
    told = {"live": True, "ready": False}
    health = HealthPort("127.0.0.1", 0, live=lambda: told["live"], ready=lambda: told["ready"])
    port = health._server.server_address[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE, trust_env=False) as http:
            assert [http.get(path).status_code for path in ("/live", "/ready", "/model")] == [200, 503, 404]
            told["ready"] = True
            assert http.get("/ready?x=1").json() == {"ok": True}
            assert http.post("/ready").status_code == 501
    finally:
        health.close()
