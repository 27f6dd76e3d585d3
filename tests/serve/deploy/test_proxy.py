"""The proxy in front of TorchServe: nginx as `serve/deploy/proxy/nginx.conf` sets it up, before a real server."""

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from ...waiting import PATIENCE, eventually
from ..conftest import TOKEN, Server
from ..hostile import BEHIND_THE_PROXY, CASES, misread
from ..service.test_reading import npy

CONFIG = Path(__file__).parents[3] / "serve" / "deploy" / "proxy" / "nginx.conf"
NGINX = shutil.which("nginx") or "/usr/sbin/nginx"

HEAD = f"POST /predictions/tiny HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 1000\r\n\r\n"
BOTH_LENGTHS = HEAD.replace("\r\n\r\n", "\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n").encode()

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not Path(NGINX).exists(), reason="nginx is not installed"),
]


@pytest.fixture(scope="module")
def proxy(torchserve: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a proxy that is patient, so that a busy machine is not taken for a slow client."""
    with nginx(tmp_path_factory.mktemp("proxy"), torchserve, seconds=PATIENCE) as url:
        yield url


@contextmanager
def nginx(folder: Path, server: Server, *, seconds: int) -> Iterator[str]:
    """The address of an nginx in front of a server; the ports and the time that clients have differ from the file."""
    holder = socket.socket()  # which never listens, and lets nobody else have the port before nginx does
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("127.0.0.1", 0))
    port = holder.getsockname()[1]
    text = CONFIG.read_text()
    for pattern, value in (
        (r"127\.0\.0\.1:8000", f"127.0.0.1:{port} reuseport"),
        (r"127\.0\.0\.1:8080", server.url.removeprefix("http://")),
        (r"client_header_timeout 10s", f"client_header_timeout {PATIENCE}s"),
        (r"client_body_timeout 10s", f"client_body_timeout {seconds}s"),
    ):
        text, count = re.subn(pattern, value, text)
        assert count == 1, pattern
    (folder / "nginx.conf").write_text(text + "\ndaemon off;\n")
    (folder / "token.map").write_text(f'"Bearer {TOKEN}" 1;\n')
    (folder / "temporary").mkdir()
    folder.chmod(0o755)
    subprocess.run([NGINX, "-t", "-p", folder, "-c", "nginx.conf"], check=True, capture_output=True, timeout=PATIENCE)
    process = subprocess.Popen([NGINX, "-p", folder, "-c", "nginx.conf"], stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: answers(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        holder.close()
        process.terminate()
        process.wait(PATIENCE)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def client(proxy: str, token: str | None = TOKEN, *, source: str | None = None) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    transport = httpx.HTTPTransport(local_address=source)
    return httpx.Client(base_url=proxy, headers=headers, timeout=PATIENCE, trust_env=False, transport=transport)


def test_whoever_has_the_token_gets_the_same_answers(proxy: str, image: np.ndarray) -> None:
    with client(proxy) as http:
        answer = http.post("/predictions/tiny", json={"image": image.tolist(), "n": 500})
        assert (answer.status_code, answer.json()["n"]) == (200, 500)
        assert http.get("/models/tiny/invoke?mode=health").status_code == 200


def test_a_stranger_is_refused_before_a_byte_of_the_body_is_read(proxy: str) -> None:
    host, _, port = proxy.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as raw:
        raw.sendall(b"POST /predictions/tiny HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert raw.recv(1000).startswith(b"HTTP/1.1 401")  # though no body was ever sent


@pytest.mark.parametrize(
    "address", ["/", "/models", "/api-description", "/ping", "/explanations/tiny", "/predictions/a/b/c"]
)
def test_addresses_that_tell_of_the_server_are_not_passed_on(proxy: str, address: str) -> None:
    with client(proxy) as http:
        assert http.get(address).status_code == 404
        assert http.options(address).status_code == 404
        assert http.options("/predictions/tiny").status_code == 403
    with client(proxy, token=None) as http:
        assert http.get(address).status_code == 401


@pytest.mark.parametrize("request_bytes", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", BOTH_LENGTHS])
def test_what_the_front_end_misreads_never_reaches_it(proxy: str, request_bytes: bytes) -> None:
    host, _, port = proxy.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as raw:
        raw.sendall(request_bytes)
        assert re.match(rb"(HTTP/1\.1 400|$)", raw.recv(1000))  # refused, or closed without a word


def test_a_slow_body_is_cut_off(torchserve: Server, tmp_path: Path) -> None:
    with nginx(tmp_path, torchserve, seconds=1) as impatient:
        host, _, port = impatient.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as raw:
            raw.sendall(HEAD.encode() + b"{")
            answer = raw.recv(1000)  # after client_body_timeout
            assert re.match(rb"(HTTP/1\.1 408|$)", answer)


def test_greedy_addresses_get_429_at_once_and_others_are_answered(proxy: str) -> None:
    """Sixteen requests under way are all that one address may have: a quarter of the queue."""
    host, _, port = proxy.removeprefix("http://").partition(":")
    greedy = ("127.0.0.2", 0)

    def refused() -> bool:
        held = [socket.create_connection((host, int(port)), timeout=PATIENCE, source_address=greedy) for _ in range(16)]
        try:
            for connection in held:
                connection.sendall(HEAD.encode())
            with client(proxy, source=greedy[0]) as http:
                status = http.get("/models/tiny/invoke?mode=health").status_code
            with client(proxy) as http:
                assert http.get("/models/tiny/invoke?mode=health").status_code == 200
            return status == 429
        finally:
            for connection in held:
                connection.close()

    eventually(refused)  # one process of nginx may be asked before another has read the heads of the sixteen


@pytest.mark.parametrize(
    "kind",
    ["application/x-www-form-urlencoded", "multipart/form-data", "multipart/form-data; boundary=", "multipart/x"],
)
def test_bodies_that_the_front_end_answers_with_500_never_reach_it(proxy: str, kind: str) -> None:
    with client(proxy) as http:
        assert http.post("/predictions/tiny", content=b"%", headers={"Content-Type": kind}).status_code == 415


def test_forms_pass_and_a_post_without_a_body_does_not(proxy: str, image: np.ndarray) -> None:
    with client(proxy) as http:
        answer = http.post("/predictions/tiny", files={"image": ("a.npy", npy(image))}, data={"n": "500"})
        assert (answer.status_code, answer.json()["n"]) == (200, 500)
        assert http.post("/predictions/tiny").status_code == 400
        assert http.get("/predictions/tiny").json()["name"] == "tiny"


@pytest.mark.parametrize("case", CASES)
def test_behind_the_proxy_requests_are_read_right(proxy: str, case: str) -> None:
    assert (misread(proxy, CASES[case]) is None) == (case not in BEHIND_THE_PROXY)
