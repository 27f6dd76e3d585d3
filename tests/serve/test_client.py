"""The client: what it sends, when it asks again, and what it makes of bad answers."""

import asyncio
import io
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robustinfer import AsyncClient, Certificate, Client, Predictor
from robustinfer.errors import ArgumentError, CertificateError, ClientError, ImageFileError, SignatureError
from robustinfer.signing import PrivateKey, sign_certificate

from ..waiting import eventually
from .conftest import Server

Array = np.ndarray[Any, Any]


class Scripted:
    """A server that gives prepared answers, one after the other, and keeps the questions."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.questions: list[tuple[str, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            """Plays the script."""

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.questions.append((self.path, dict(self.headers), body))
                status, document = outer.answers.pop(0)
                content = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST  # noqa: N815

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    server = Scripted()
    yield server
    server.close()


@pytest.fixture
def certificate(predictor: Predictor, image: Array) -> Certificate:
    return predictor.certify(image, n=500, seed=1)


def test_the_question_on_the_wire(scripted: Scripted, certificate: Certificate, image: Array) -> None:
    scripted.answers = [(200, certificate.to_json())]
    with Client(f"{scripted.url}/predictions/tiny", token="t") as client:
        found = client.certify(image, n=500, seed=1, radius=None)
    path, headers, body = scripted.questions[0]
    assert found == certificate
    assert path == "/models/tiny/invoke?mode=certify&n=500&seed=1"
    assert headers["Authorization"] == "Bearer t"
    assert np.array_equal(np.load(io.BytesIO(body)), image)


def test_a_full_or_broken_server_is_asked_again(scripted: Scripted, certificate: Certificate, image: Array) -> None:
    died = {"code": 507, "type": "InternalServerException", "message": "Worker died."}
    scripted.answers = [(503, {}), (507, died), (500, died), (503, b""), (200, certificate.to_json())]
    with Client(scripted.url) as client:
        assert client.certify(image) == certificate
    assert len(scripted.questions) == 5
    assert scripted.questions[0][0].startswith("/invocations?")


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 500])
def test_other_errors_are_raised_at_once(scripted: Scripted, image: Array, status: int) -> None:
    scripted.answers = [(status, {"error": {"code": "c", "message": "A sentence."}})]
    with Client(scripted.url) as client, pytest.raises(ClientError, match="A sentence") as caught:
        client.certify(image)
    assert (caught.value.status, caught.value.code) == (status, "c")
    assert len(scripted.questions) == 1


def test_patience_ends(scripted: Scripted, image: Array) -> None:
    scripted.answers = [(503, {"code": 503, "type": "ServiceUnavailableException", "message": "full"})] * 3
    with Client(scripted.url, retries=2) as client, pytest.raises(ClientError, match="full") as caught:
        client.predict(image)
    assert caught.value.status == 503
    assert len(scripted.questions) == 3


def test_answers_that_are_no_certificate(scripted: Scripted, image: Array) -> None:
    scripted.answers = [(200, b"<html>"), (200, {"label": 1})]
    with Client(scripted.url) as client:
        with pytest.raises(ClientError):
            client.certify(image)
        with pytest.raises(CertificateError, match="missing"):
            client.certify(image)


def test_a_client_with_a_key_takes_what_it_has_signed_and_nothing_else(
    scripted: Scripted, certificate: Certificate, image: Array, tmp_path: Path
) -> None:
    key, document = PrivateKey.generate(), certificate.to_json()
    public = key.write(tmp_path / "server.key")
    signed = document | {"signature": sign_certificate(document, key)}
    foreign = document | {"signature": sign_certificate(document, PrivateKey.generate())}
    scripted.answers = [(200, one) for one in (signed, signed, document, foreign, signed | {"seconds": 0.0})]
    with Client(scripted.url, key=public) as client:
        assert client.certify(image) == certificate
        assert client.certify_signed(image) == json.loads(json.dumps(signed))
        for words in ("is not signed", "another key", "changed after signing"):
            with pytest.raises(SignatureError, match=words):
                client.certify(image)
    scripted.answers = [(200, signed), (200, document)]

    async def ask() -> None:
        async with AsyncClient(scripted.url, key=key.public) as client:
            assert (await client.certify_signed(image))["signature"] == signed["signature"]
            with pytest.raises(SignatureError, match="is not signed"):
                await client.certify(image)

    asyncio.run(ask())
    with Client(scripted.url) as client, pytest.raises(ArgumentError, match="public key"):
        client.certify_signed(image)


def test_nobody_there(image: Array) -> None:
    with socket.socket() as unanswering, Client(bound(unanswering), retries=1) as client:
        assert not client.ready()
        with pytest.raises(ClientError, match="does not answer"):
            client.certify(image)


def bound(unanswering: socket.socket) -> str:
    """An address that nobody else can take, and at which nobody listens: connections are refused."""
    unanswering.bind(("127.0.0.1", 0))
    return f"http://127.0.0.1:{unanswering.getsockname()[1]}"


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="address like"):
        Client("127.0.0.1:8080")
    with Client("http://127.0.0.1:9") as client, pytest.raises(ImageFileError):
        client.certify(tmp_path / "missing.png")


@pytest.mark.server
def test_both_clients_against_the_real_server(
    server: Server, predictor: Predictor, image: Array, tmp_path: Path
) -> None:
    np.save(tmp_path / "image.npy", image)
    expected = predictor.certify(image, n=2000, seed=9).counts

    async def ask() -> tuple[Any, ...]:
        async with AsyncClient(server.url, model="tiny", token=server.token) as client:
            assert await client.ready()
            card = (await client.metadata())["card"]
            several = [client.certify(image, n=2000, seed=9) for _ in range(4)]
            found = await asyncio.gather(*several, client.predict(image, n=200))
            return card, *found

    card, *found, prediction = asyncio.run(ask())
    assert card["name"] == "tiny"
    assert all(certificate.counts == expected for certificate in found)
    assert prediction.class_name == "bright"
    with server.client() as client:
        eventually(client.ready)
        assert client.certify(tmp_path / "image.npy", n=2000, seed=9).counts == expected


@pytest.mark.server
def test_robust_predict_asks_a_server(server: Server, image: Array, tmp_path: Path, monkeypatch: Any) -> None:
    from typer.testing import CliRunner

    from robustinfer.cli.main import app

    np.save(tmp_path / "image.npy", image)
    monkeypatch.setenv("ROBUST_SERVE_TOKEN", str(server.token))
    url = f"{server.url}/predictions/tiny"
    done = CliRunner().invoke(app, ["predict", "--url", url, str(tmp_path / "image.npy"), "--seed", "3", "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert (answer["class_name"], answer["seed"]) == ("bright", 3)
