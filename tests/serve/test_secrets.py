"""Secrets of a server, over both engines: what its processes and strangers learn, and what becomes of its token."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import numpy.typing as npt
import pytest
from PIL import Image
from typer.testing import CliRunner

from robustinfer import Predictor
from robustinfer.cli.main import app
from robustinfer.signing import PrivateKey, PublicKey, check_answer

from ..waiting import PATIENCE, eventually
from .conftest import TOKEN, TORCHSERVE_IS_SLOW, Server, serving, unless_busy

Array = npt.NDArray[Any]

pytestmark = pytest.mark.server


def environment_of(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return {name: value for name, _, value in (entry.partition("=") for entry in entries) if name}


def kill_worker(server: Server) -> None:
    """Kill the worker and wait for the next one to answer."""
    (victim,) = server.workers()
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: server.workers() not in ([], [victim]))


def certify(server: Server, image: Array, token: str | None, **fields: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    body = {"image": image.tolist(), "n": 500, **fields}
    return httpx.post(f"{server.url}/predictions/tiny", json=body, headers=headers, timeout=PATIENCE, trust_env=False)


@TORCHSERVE_IS_SLOW
def test_a_foreign_environment_a_signing_key_a_lost_token_and_a_new_one(
    tiny: Path, image: Array, predictor: Predictor, tmp_path: Path, engine: str
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
    with serving(tmp_path, str(tiny), *options, environment=foreign | secret, engine=engine) as server:
        nothing_leaks(server, set(foreign), hostile)
        state = server.folder() / "state"
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
        assert str(hostile) not in Path(f"/proc/{pid}/cmdline").read_bytes().decode()


def strangers_learn_nothing(server: Server, image: Array) -> None:
    """A client that has the token learns everything about the model."""
    stranger, friend = certify(server, image, None), certify(server, image, TOKEN)
    assert (stranger.status_code, friend.status_code) == (401, 200)
    assert "X-Model-Digest" not in stranger.headers
    assert friend.headers["X-Model-Digest"] == friend.json()["model"]["digest"]
    address = f"{server.url}/models/tiny/invoke?mode=health"
    health = unless_busy(lambda: httpx.get(address, timeout=PATIENCE, trust_env=False))
    assert (health.status_code, health.json()) == (200, {"ready": True})
    assert "X-Model-Digest" not in health.headers


def tokens_change_and_are_lost(server: Server, image: Array, token_file: Path) -> None:
    """A new token is read on SIGHUP; without its files the server lets nobody in, not even after a worker's restart."""
    other = "another-token-for-tests-0123456789"
    token_file.write_text(other)
    server.process.send_signal(signal.SIGHUP)
    eventually(lambda: certify(server, image, other).status_code == 200)
    assert certify(server, image, TOKEN).status_code == 401
    (server.folder() / "state" / "token.sha256").unlink()
    kill_worker(server)
    assert certify(server, image, None).status_code == 401
    assert certify(server, image, other).status_code == 401
