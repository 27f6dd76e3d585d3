"""What only the asgi engine has: streams of votes, replays, the whole open protocol, work that ends with its client."""

import asyncio
import json
import select
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from robustinfer import AsyncClient, Certificate, Predictor
from robustinfer.errors import ClientError
from robustinfer.live import Snapshot

from ...waiting import PATIENCE, eventually
from ..conftest import TOKEN, Server

pytestmark = pytest.mark.server

Array = np.ndarray[Any, Any]


def test_a_stream_shows_votes_and_ends_with_the_same_certificate(
    asgi: Server, predictor: Predictor, image: Array
) -> None:
    """If the engine is done before anybody looks, there are no votes to show: then it is asked once more."""
    expected = predictor.certify(image, n=50_000, seed=3)

    def shows_votes() -> bool:
        with asgi.client() as client:
            *votes, found = client.stream(image, n=50_000, seed=3)
        assert isinstance(found, Certificate)
        assert (found.radius, found.counts) == (expected.radius, expected.counts)
        used = [snapshot.samples_used for snapshot in votes if isinstance(snapshot, Snapshot)]
        assert len(used) == len(votes)
        assert used == sorted(used)
        # A running radius of n samples would not be proven, so there is none.
        assert {(vote.label, vote.radius) for vote in votes} <= {(None, None)}
        return bool(votes)

    eventually(shows_votes)


def test_a_radius_in_a_stream_is_proven_at_its_moment(asgi: Server, image: Array) -> None:
    async def ask() -> list[Snapshot | Certificate]:
        async with AsyncClient(asgi.url, model="tiny", token=TOKEN) as client:
            return [event async for event in client.stream(image, n=50_000, deadline=3600.0)]

    *votes, found = asyncio.run(ask())
    radii = [vote.radius for vote in votes]
    assert all(radius is not None for radius in radii)
    assert radii == sorted(radii, key=lambda radius: radius or 0.0)  # what is proven stays proven
    assert all((radius or 0.0) <= (found.radius or 0.0) for radius in radii)


def test_a_stream_is_refused_like_a_request(asgi: Server, image: Array) -> None:
    with asgi.client() as client, pytest.raises(ClientError) as caught:
        list(client.stream(image, n=10**9))
    assert (caught.value.status, caught.value.code) == (422, "limit_n")
    with asgi.http() as http:
        wrong = http.post("/predictions/tiny?stream=perhaps", json={"image": image.tolist()})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "wrong_type")


def test_a_certificate_is_replayed(asgi: Server, image: Array) -> None:
    with asgi.http() as http:
        made = http.post("/predictions/tiny", json={"image": image.tolist(), "n": 2000}).json()
        question = {"image": image.tolist(), "certificate": made}
        assert http.post("/models/tiny/verify", json=question).json()["ok"] is True
        lie = made | {"counts": [made["counts"][0] + 1, *made["counts"][1:-1], made["counts"][-1] - 1]}
        found = http.post("/models/tiny/verify", json=question | {"certificate": lie}).json()
        assert found["ok"] is False
        assert "votes came out differently" in found["reason"]
        answers = {
            "other_image": question | {"image": (255 - image).tolist()},
            "other_model": question | {"certificate": made | {"model": made["model"] | {"digest": "sha256:0"}}},
            "bad_certificate": question | {"certificate": {}},
            "no_certificate": {"image": image.tolist()},
            "limit_n": question | {"certificate": made | {"n": 10**8}},
        }
        for code, body in answers.items():
            assert http.post("/models/tiny/verify", json=body).json()["error"]["code"] == code


def test_a_client_of_triton(asgi: Server, predictor: Predictor, image: Array) -> None:
    from tritonclient import http as triton

    headers = {"Authorization": f"Bearer {TOKEN}"}
    expected = predictor.certify(image, n=2000, seed=7)
    client = triton.InferenceServerClient(asgi.url.removeprefix("http://"))
    try:
        assert client.is_server_live()
        eventually(client.is_server_ready)
        eventually(lambda: client.is_model_ready("tiny"))
        assert client.get_server_metadata(headers)["extensions"] == ["binary_tensor_data"]
        described = client.get_model_metadata("tiny", headers=headers)
        assert described["inputs"] == [{"name": "image", "datatype": "UINT8", "shape": [-1, 1, 8, 8]}]
        for binary in (True, False):
            tensor = triton.InferInput("image", [1, 1, 8, 8], "UINT8")
            tensor.set_data_from_numpy(image[None, None], binary_data=binary)
            names = ("label", "radius", "certificate")
            outputs = None if binary else [triton.InferRequestedOutput(name, binary_data=False) for name in names]
            # The client writes into the headers that it is given.
            settings = {"headers": dict(headers), "parameters": {"n": 2000, "seed": 7}}
            found = client.infer("tiny", [tensor], outputs=outputs, **settings)
            assert found.as_numpy("label").tolist() == [expected.label]
            assert found.as_numpy("radius").tolist() == [expected.radius]
            (text,) = found.as_numpy("certificate").tolist()
            assert Certificate.loads(text).counts == expected.counts
        with pytest.raises(triton.InferenceServerException, match="label, radius"):
            client.infer("tiny", [tensor], outputs=[triton.InferRequestedOutput("other")], headers=headers)
    finally:
        client.close()


def connection(server: Server) -> socket.socket:
    parts = urlsplit(server.url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=PATIENCE)


def test_the_token_is_asked_for_before_the_body(asgi: Server) -> None:
    with connection(asgi) as stranger:
        # The body is announced and never sent: whoever answers has not waited for it.
        stranger.sendall(b"POST /predictions/tiny HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert stranger.recv(65_536).startswith(b"HTTP/1.1 401 ")
    with connection(asgi) as stranger:
        stranger.sendall(
            b"POST /predictions/tiny HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
        )
        assert stranger.recv(65_536).startswith(b"HTTP/1.1 401 ")


def test_strangers_learn_nothing(asgi: Server) -> None:
    with httpx.Client(base_url=asgi.url, timeout=PATIENCE) as stranger:
        for method, address in (("GET", "/models"), ("GET", "/v2/models/tiny"), ("OPTIONS", "/"), ("GET", "/nothing")):
            answer = stranger.request(method, address)
            assert answer.status_code == 401, address
            assert "digest" not in str(answer.headers).lower()
            assert "tiny" not in answer.text


def test_whoever_hangs_up_frees_the_engine(asgi: Server, image: Array) -> None:
    body = json.dumps({"image": image.tolist(), "n": 50_000, "deadline": 3600.0}).encode()
    head = f"POST /predictions/tiny HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    question = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    def gone() -> int:
        return asgi.log.read_text().count('"client_gone"')

    before = gone()

    def hang_up() -> bool:
        """Whether the server noticed; before anybody looked it may have answered all of them."""
        impatient = [connection(asgi) for _ in range(40)]
        for one in impatient:
            one.sendall(question)
        eventually(lambda: asgi.in_hand() > 0 or len(select.select(impatient, [], [], 0)[0]) == len(impatient))
        for one in impatient:
            one.close()
        eventually(lambda: asgi.in_hand() == 0)
        return gone() > before

    eventually(hang_up)
    with asgi.client(retries=0) as client:
        assert client.predict(image, n=100).samples_used > 0
