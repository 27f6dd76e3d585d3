"""What an unlucky or hostile day brings to a real server: lost files, a foreign environment, lost workers."""

import contextlib
import json
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
from PIL import Image
from robust.serve.service.environment import inherited
from robust.serve.service.probes import HealthPort
from robust.serve.service.state import State
from robust.serve.torchserve.watch import Watch
from typer.testing import CliRunner

from robustinfer import Predictor
from robustinfer.cli.main import app
from robustinfer.signing import PrivateKey, PublicKey, check_answer

from ...waiting import PATIENCE, eventually
from ..conftest import TOKEN, Server, serving
from .connections import port_of, read_by

Array = npt.NDArray[Any]

pytestmark = pytest.mark.server


def environment_of(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return {name: value for name, _, value in (entry.partition("=") for entry in entries) if name}


def folder_of(server: Server) -> Path:
    """The launcher's private folder."""
    return Path(environment_of(server.workers()[0])["ROBUST_SERVE_STATE"]).parent


def kill_worker(server: Server) -> None:
    """Kill the worker and wait for the next one to answer."""
    (victim,) = server.workers()
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: server.workers() not in ([], [victim]))


def certify(server: Server, image: Array, token: str | None, **fields: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    body = {"image": image.tolist(), "n": 500, **fields}
    return httpx.post(f"{server.url}/predictions/tiny", json=body, headers=headers, timeout=PATIENCE, trust_env=False)


def test_a_foreign_environment_a_signing_key_a_lost_token_and_a_new_one(
    tiny: Path, image: Array, predictor: Predictor, tmp_path: Path
) -> None:
    hostile = tmp_path / "hostile.properties"
    hostile.write_text("management_address=http://127.0.0.1:0\ndisable_token_authorization=true\n")
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    key = PrivateKey.generate()
    public = key.write(tmp_path / "release.key", passphrase=b"a word")
    foreign = {
        "TS_CONFIG_FILE": str(hostile),
        "http_proxy": "http://127.0.0.1:9",
        "no_proxy": "",
        "DATABASE_URL": "postgres://user:word@host/base",
        "DB_PASSWORD": "a password",
    }
    options = ["--token-file", str(token_file), "--sign-key", str(tmp_path / "release.key")]
    secret = {"ROBUST_KEY_PASSPHRASE": "a word"}
    with serving(tmp_path, str(tiny), *options, environment=foreign | secret) as server:
        nothing_leaks(server, set(foreign), hostile)
        state = folder_of(server) / "state"
        assert (state.stat().st_mode & 0o777, (state / "sign.key").stat().st_mode & 0o777) == (0o700, 0o600)
        strangers_learn_nothing(server, image)
        with server.client(key=public, retries=10_000) as client:
            signed = client.certify_signed(image, n=500)
            assert client.metadata()["signed_by"] == key.public.id
            # A worker that comes back signs as well.
            kill_worker(server)
            assert predictor.verify(client.certify(image, n=500), image).ok
        tokens_change_and_are_lost(server, image, token_file)
    assert not state.parent.exists()
    check_answer(signed, PublicKey.load(public))
    saved, pixels = tmp_path / "answer.json", tmp_path / "image.png"
    saved.write_text(json.dumps(signed))
    Image.fromarray(image).save(pixels)
    arguments = [str(saved), "--key", str(public), "--model", str(tiny), "--image", str(pixels)]
    assert CliRunner().invoke(app, ["verify", *arguments]).exit_code == 0


def nothing_leaks(server: Server, foreign: set[str], hostile: Path) -> None:
    """Neither the variables of others nor a secret of the server reach its processes; the key is for workers alone."""
    for pid in server.group():
        found = environment_of(pid)
        assert not set(found) & {*foreign, "ROBUST_SERVE_TOKEN"}
        assert not [value for value in found.values() if "a word" in value or "PRIVATE" in value]
    assert str(hostile) not in Path(f"/proc/{server.pid}/cmdline").read_bytes().decode()


def strangers_learn_nothing(server: Server, image: Array) -> None:
    """A client that has the token learns everything about the model."""
    stranger, friend = certify(server, image, None), certify(server, image, TOKEN)
    assert (stranger.status_code, friend.status_code) == (401, 200)
    assert "X-Model-Digest" not in stranger.headers
    assert friend.headers["X-Model-Digest"] == friend.json()["model"]["digest"]
    health = httpx.get(f"{server.url}/models/tiny/invoke?mode=health", timeout=PATIENCE, trust_env=False)
    assert (health.status_code, health.json()) == (200, {"ready": True})
    assert "X-Model-Digest" not in health.headers


def tokens_change_and_are_lost(server: Server, image: Array, token_file: Path) -> None:
    """A new token is read on SIGHUP; without its files the server lets nobody in, not even after a worker's restart."""
    other = "another-token-for-tests-0123456789"
    token_file.write_text(other)
    server.process.send_signal(signal.SIGHUP)
    eventually(lambda: certify(server, image, other).status_code == 200)
    assert certify(server, image, TOKEN).status_code == 401
    (folder_of(server) / "state" / "token.sha256").unlink()
    kill_worker(server)
    assert certify(server, image, None).status_code == 401
    assert certify(server, image, other).status_code == 401


@pytest.mark.slow
def test_a_server_whose_workers_cannot_come_back_ends_with_a_reason(tiny: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text("watch_timeout = 3.0\n")
    with serving(tmp_path, str(tiny), "--config", str(config), token=None) as server:
        assert httpx.get(f"{server.health}/ready", timeout=PATIENCE).status_code == 200
        unpacked = [path.parent for path in folder_of(server).rglob("model.onnx") if path.parent.name != "store"]
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
    config.write_text("batch_size = 1\nmax_n = 100_000_000\nmax_seconds = 3600\ndrain_timeout = 0.5\n")
    with serving(tmp_path, str(tiny), "--config", str(config), token=None) as server:
        folder = folder_of(server)

        def ask() -> None:
            with contextlib.suppress(httpx.HTTPError):  # cut off, as it should be
                certify(server, image, None, n=100_000_000)

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


def test_the_watch_gives_up_only_on_a_server_that_does_nothing(tmp_path: Path) -> None:
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
