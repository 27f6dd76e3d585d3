"""Both engines, for real, on loopback: every way to ask, and every way to be refused."""

import base64
import io
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from robust.serve.torchserve.listeners import listening_ports

from robustinfer import Certificate, Predictor

from ..waiting import PATIENCE, eventually
from .conftest import TOKEN, Server, unless_busy
from .hostile import CASES, FLAWS, misread

pytestmark = pytest.mark.server

Array = np.ndarray[Any, Any]
SETTINGS = {"n": 2000, "seed": 7}
GREY = np.full((8, 8), 99, dtype=np.uint8)


def png(image: Array) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def npy(image: Array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, image)
    return buffer.getvalue()


def same(found: dict[str, Any], expected: Certificate) -> bool:
    """Equal in everything but the time it took."""
    return bool(found | {"seconds": 0} == json.loads(json.dumps(expected.to_json())) | {"seconds": 0})


@pytest.mark.parametrize("form", ["png", "npy", "json", "json-base64", "form", "form-data", "query", "put"])
def test_every_form_gives_the_certificate_of_the_predictor(
    server: Server, predictor: Predictor, image: Array, form: str
) -> None:
    expected = predictor.certify(image, n=2000, seed=7)
    text = {name: str(value) for name, value in SETTINGS.items()}
    question: dict[str, dict[str, Any]] = {
        "png": {"url": "/models/tiny/invoke", "params": text, "content": png(image)},
        "npy": {"url": "/models/tiny/invoke", "params": text, "content": npy(image)},
        "json": {"url": "/predictions/tiny", "json": {"image": image.tolist(), **SETTINGS}},
        "json-base64": {
            "url": "/predictions/tiny",
            "json": {"image": base64.b64encode(png(image)).decode(), "mode": "certify", **SETTINGS},
        },
        "form": {"url": "/predictions/tiny", "files": {"image": ("a.png", png(image), "image/png")}, "data": text},
        "form-data": {"url": "/predictions/tiny", "files": {"data": ("a.npy", npy(image))}, "data": text},
        "put": {"url": "/models/tiny/invoke", "params": text, "content": png(image)},  # curl -T
        "query": {"url": "/invocations", "params": {**text, "model_name": "tiny"}, "content": png(image)},
    }
    with server.http() as http:
        response = http.request("PUT" if form == "put" else "POST", **question[form])
    assert response.status_code == 200, response.text
    assert same(response.json(), expected)
    assert response.headers["X-Model-Digest"] == predictor.digest
    assert response.headers["x-request-id"]


def test_a_jpeg_is_decoded_like_the_predictor_decodes_it(server: Server, predictor: Predictor, image: Array) -> None:
    from robustinfer.images import decode_image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=90)
    expected = predictor.certify(decode_image(buffer.getvalue(), predictor.card.input), n=2000, seed=7)
    with server.client() as client:
        found = client.certify(buffer.getvalue(), n=2000, seed=7)
    assert same(json.loads(json.dumps(found.to_json())), expected)
    assert found.counts == expected.counts


@pytest.mark.parametrize("settings", [{"radius": 0.2}, {"tolerance": 0.05}, {"n": 500, "bound": "top-class"}])
def test_modes_of_certify(server: Server, predictor: Predictor, image: Array, settings: dict[str, Any]) -> None:
    expected = predictor.certify(image, seed=3, **({"n": 20_000} | settings))
    with server.client() as client:
        found = client.certify(image, seed=3, **({"n": 20_000} | settings))
    assert (found.radius, found.counts, found.stopped) == (expected.radius, expected.counts, expected.stopped)


def test_deadline_is_kept(server: Server, image: Array) -> None:
    with server.client() as client:
        certificate = client.certify(image, deadline=3600.0, n=2000)
        late = client.certify(image, deadline=1e-6)
    assert (certificate.procedure, certificate.stopped) == ("deadline", "exhausted")
    assert (late.stopped, late.samples_used) == ("deadline", 0)


def test_floats_are_certified_in_the_16_bit_domain(server: Server, predictor: Predictor, image: Array) -> None:
    pixels = (image / 255).astype(np.float32)
    expected = predictor.certify(pixels, n=2000, seed=7)
    with server.http() as http:
        found = http.post("/predictions/tiny", json={"image": pixels.tolist(), **SETTINGS}).json()
    assert found["domain"] == "16-bit"
    assert same(found, expected)


def test_predict(server: Server, predictor: Predictor, image: Array) -> None:
    with server.client() as client:
        found = client.predict(image, n=200, seed=5)
    expected = predictor.predict(image, n=200, seed=5)
    assert (found.label, found.counts, found.class_name) == (expected.label, expected.counts, "bright")


def test_an_abstention_is_a_normal_answer(server: Server) -> None:
    between = np.full((8, 8), 0.75, dtype=np.float32)  # where "medium" and "bright" have equal scores
    with server.client() as client:
        found = client.certify(between, n=1000, seed=1)
    assert found.abstained
    assert (found.label, found.radius) == (None, 0.0)


def test_open_inference_protocol(server: Server, predictor: Predictor, image: Array) -> None:
    tensor = {"name": "image", "shape": [1, 1, 8, 8], "datatype": "UINT8", "data": image.reshape(-1).tolist()}
    with server.http() as http:
        response = http.post(
            "/v2/models/tiny/infer",
            json={"id": "q-1", "inputs": [tensor], "parameters": {"mode": "certify", **SETTINGS}},
        )
        document = response.json()
        refused = http.post("/v2/models/tiny/infer", json={"inputs": [{**tensor, "shape": [1, 1, 8, 9]}]})
    assert response.status_code == 200, response.text
    expected = predictor.certify(image, n=2000, seed=7)
    outputs = {output["name"]: output for output in document["outputs"]}
    assert (document["id"], document["model_name"], document["model_version"]) == ("q-1", "tiny", "1")
    assert outputs["label"] == {"name": "label", "shape": [1], "datatype": "INT64", "data": [expected.label]}
    assert outputs["radius"]["data"] == [expected.radius]
    assert Certificate.loads(outputs["certificate"]["data"][0]).counts == expected.counts
    assert refused.status_code == 400


def test_two_models_answer_under_their_names(server: Server, colour: Path) -> None:
    pixels = np.full((3, 4, 4), 250, dtype=np.uint8)
    expected = Predictor.load(colour, threads=1).certify(pixels, n=2000, seed=1)
    with server.client("colour") as client:
        found = client.certify(pixels, n=2000, seed=1)
        assert client.metadata()["card"]["input"] == {"channels": 3, "height": 4, "width": 4, "resize": "refuse"}
    assert (found.model.name, found.radius) == ("colour", expected.radius)
    with server.http() as http:
        assert http.post("/predictions/nobody", content=b"x").status_code == 404


def test_metadata_is_the_card(server: Server, predictor: Predictor) -> None:
    with server.http() as http:
        for address in ("/predictions/tiny", "/models/tiny/invoke?mode=metadata", "/predictions/tiny/1/metadata"):
            document = http.get(address).json()
            assert document["card"] == json.loads(predictor.card.dumps())
            assert document["model"]["digest"] == predictor.digest
            assert document["limits"]["max_n"] == 50_000


def test_health_needs_no_token_and_everything_else_does(server: Server, image: Array) -> None:
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as anybody:
        assert unless_busy(lambda: anybody.get("/models/tiny/invoke?mode=health")).json()["ready"] is True
        assert anybody.get("/predictions/tiny/1/health").status_code == 401  # TorchServe makes it the header url_path
        assert anybody.get("/ping").status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
            for address in ("/predictions/tiny", "/models/tiny/invoke", "/v2/models/tiny/infer", "/explanations/tiny"):
                refused = anybody.post(address, json={"image": image.tolist()}, headers=headers)
                assert refused.status_code == 401, address
                assert refused.headers["WWW-Authenticate"] == "Bearer"
            assert anybody.get("/predictions/tiny", headers=headers).status_code == 401


def test_the_management_interface_is_not_on_the_network(torchserve: Server) -> None:
    # TorchServe opens four ports; the two of gRPC are closed, so nothing but these is left to talk to.
    ports = {httpx.URL(address).port for address in (torchserve.url, torchserve.metrics)}
    assert set(listening_ports(torchserve.pid)) == ports
    with torchserve.http() as http:
        for method, address in (("GET", "/models"), ("POST", "/models?url=x.mar"), ("DELETE", "/models/tiny")):
            assert http.request(method, address).status_code in (404, 405)


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "urlencoded": ({"data": {"image": "1"}}, 415, "unsupported_body"),
    "noise": ({"content": b"\x00\x01\x02"}, 415, "unsupported_body"),
    "empty form": ({"files": {"other": b"x"}}, 400, "unknown_field"),
    "broken json": ({"content": b'{"image": [1,'}, 400, "not_json"),
    "unknown field": ({"json": {"image": [[9]], "sigmoid": 1}}, 400, "unknown_field"),
    "unknown field without a value": ({"json": {"image": [[9]], "sigmoid": None}}, 400, "unknown_field"),
    "two images": ({"files": [("image", png(GREY)), ("image", png(GREY))]}, 400, "repeated_field"),
    "wrong type": ({"json": {"image": [[9]], "n": "many"}}, 400, "wrong_type"),
    "wrong shape": ({"json": {"image": [[9, 9], [9, 9]]}}, 422, "bad_image"),
    "ragged": ({"json": {"image": [[9], [9, 9]]}}, 400, "wrong_type"),
    "range": ({"json": {"image": [[300] * 8] * 8}}, 422, "bad_image"),
    "ambiguous": ({"json": {"image": [[1] * 8] * 8}}, 422, "ambiguous_image"),
    "too many samples": ({"json": {"image": [[9] * 8] * 8, "n": 50_001}}, 422, "limit_n"),
    "alpha": ({"json": {"image": [[9] * 8] * 8, "alpha": 2}}, 422, "limit_alpha"),
    "deadline": ({"json": {"image": [[9] * 8] * 8, "deadline": 1e6}}, 422, "limit_deadline"),
    "damaged png": ({"content": b"\x89PNG\r\n\x1a\n" + b"\0" * 40}, 422, "bad_image"),
    "pickled npy": ({"content": npy(np.array([{}], dtype=object))}, 422, "bad_image"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_have_a_status_a_code_and_a_sentence(server: Server, case: str) -> None:
    question, status, code = REFUSED[case]
    with server.http() as http:
        response = http.post("/predictions/tiny", **question)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code
    assert error["message"].endswith((".", ")"))
    assert error["request_id"] == response.headers["x-request-id"]


def test_errors_of_the_open_protocol_are_texts_even_if_the_body_cannot_be_read(server: Server) -> None:
    with server.http() as http:
        response = http.post("/v2/models/tiny/infer", content=b'{"inputs": [{"name": "image",')
        assert (response.status_code, type(response.json()["error"])) == (400, str)


def test_half_a_character_ends_no_worker(server: Server) -> None:
    workers = server.workers()
    tensor = {"name": "image", "shape": [1, 8, 8], "datatype": "UINT8", "data": GREY.reshape(-1).tolist()}
    with server.http() as http:
        body = json.dumps({"id": "\ud800", "inputs": [tensor], "parameters": {"n": 500}})
        response = http.post("/v2/models/tiny/infer", content=body)
        assert (response.status_code, response.json()["id"]) == (200, "\ud800")
    assert server.workers() == workers


def test_a_query_that_says_two_things_is_refused(server: Server) -> None:
    with server.http() as http:
        response = http.post("/models/tiny/invoke?n=500&n=600", content=png(GREY))
        assert (response.status_code, response.json()["error"]["code"]) == (400, "repeated_field")
        response = http.post("/models/tiny/invoke?n=500", json={"image": GREY.tolist(), "n": 600})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "repeated_field")


def test_a_header_cannot_ask_in_the_place_of_the_body(server: Server) -> None:
    with server.http() as http:
        response = http.post("/predictions/tiny", json={"image": GREY.tolist()}, headers={"url_path": "health"})
        assert "ready" not in response.json()


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(server: Server) -> None:
    with server.http() as http:
        assert http.post("/predictions/tiny", content=b"\x89PNG" + b"\0" * (1 << 20)).status_code == 413


def test_good_and_bad_requests_of_one_batch_get_their_own_answers(
    server: Server, predictor: Predictor, image: Array
) -> None:
    good = {"image": image.tolist(), "n": 20_000}
    expected = {seed: predictor.certify(image, n=20_000, seed=seed).radius for seed in range(8)}
    bad = [question for question, _, _ in REFUSED.values() if "json" in question]

    def ask(place: int) -> httpx.Response:
        with server.http() as http:
            if place % 3 == 2:
                return http.post("/predictions/tiny", **bad[place % len(bad)])
            return http.post("/predictions/tiny", json={**good, "seed": place % 8})

    with ThreadPoolExecutor(16) as pool:
        responses = list(pool.map(ask, range(48)))
    for place, response in enumerate(responses):
        if place % 3 == 2:
            assert 400 <= response.status_code < 500
        else:
            assert response.json()["radius"] == expected[place % 8]


def test_metrics_are_histograms_per_model(server: Server, image: Array) -> None:
    with server.client() as client:
        client.certify(image, n=1000)
        client.certify(np.full((8, 8), 0.75, dtype=np.float32), n=1000, seed=1)
    with server.http() as http:
        http.post("/predictions/tiny", content=b"nothing")

    def found(name: str, **labels: str) -> bool:
        """Whether there is such a metric, with these labels among others, in any order."""
        lines = [
            line for line in httpx.get(server.metrics, timeout=PATIENCE).text.splitlines() if line.startswith(name)
        ]
        return any(all(f'{label}="{value}"' in line for label, value in labels.items()) for line in lines)

    # TorchServe reads what a worker prints in a thread of its own, which may be later than the answer.
    eventually(lambda: found("robust_errors_total{", model="tiny", code="unsupported_body"))
    for name in ("robust_latency_seconds", "robust_samples_used_10k", "robust_radius"):
        assert found(f"{name}_bucket{{", model="tiny")
    assert found("robust_requests_total{", model="tiny", mode="certify", status="200")
    assert found("robust_abstentions_total{", model="tiny", mode="certify")


def test_logs_are_json_with_ids_and_without_secrets(server: Server, image: Array) -> None:
    with server.http() as http:
        response = http.post("/models/tiny/invoke", params={"n": "1000"}, content=png(image))

    def mine() -> list[dict[str, Any]]:
        complete = server.log.read_text().rpartition("\n")[0]
        records = [json.loads(line) for line in complete.splitlines()]
        return [record for record in records if record.get("request_id") == response.headers["x-request-id"]]

    eventually(lambda: bool(mine()))  # the line may be written later than the answer is sent
    (record,) = mine()
    assert record["status"] == 200
    assert record["digest"].startswith("sha256:")
    text = server.log.read_text()
    assert TOKEN not in text
    assert "Authorization" not in text
    assert "n=1000" not in text


def test_the_front_end_misreads_what_the_page_about_security_says(server: Server, engine: str) -> None:
    """No more than that; and no less, so that the page stays true."""
    with ThreadPoolExecutor(len(CASES)) as pool:
        found = dict(zip(CASES, pool.map(lambda case: misread(server.url, case), CASES.values()), strict=True))
    assert {name for name, wrong in found.items() if wrong} == (FLAWS if engine == "torchserve" else set()), found
