"""Thousands of requests nobody would send: no status but 2xx, 4xx and 503, no worker lost, no memory kept."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest
import robust.serve.service.fields as fields
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from robust.serve.service import openapi

from ..conftest import Server, serving, unless_busy
from .test_reading import npy, picture

DOCUMENT = openapi.whole_document()
LOOSE = settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def test_the_document_has_the_fields_the_server_reads() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert set(schemas["Request"]["properties"]) == {"image", "dtype", *fields.FIELDS}
    assert set(schemas["Form"]["properties"]) == {"image", *fields.FIELDS}
    assert set(schemas["InferRequest"]["properties"]["parameters"]["properties"]) == set(fields.FIELDS)
    query = DOCUMENT["components"]["parameters"]
    assert set(query) - {"model", "version", "model_name", "stream"} == set(fields.FIELDS)
    for name, field in fields.FIELDS.items():
        if isinstance(field.kind, tuple):
            assert set(schemas["Request"]["properties"][name]["enum"]) == set(field.kind)


def validated(schema: str, document: Any) -> None:
    """Check a document against a schema of the OpenAPI document."""
    jsonschema.Draft202012Validator(
        {"$ref": f"#/components/schemas/{schema}", "components": DOCUMENT["components"]}
    ).validate(document)


@pytest.mark.server
def test_answers_are_as_the_document_says(server: Server, image: Any) -> None:
    pixels = image.tolist()
    tensor = {"name": "image", "shape": [1, 8, 8], "datatype": "UINT8", "data": image.reshape(-1).tolist()}
    with server.http() as http:
        validated("Certificate", http.post("/predictions/tiny", json={"image": pixels, "n": 500}).json())
        answer = http.post("/predictions/tiny", json={"image": pixels, "n": 500, "mode": "predict"})
        validated("Prediction", answer.json())
        validated("Error", http.post("/predictions/tiny", json={"image": 5}).json())
        validated("Metadata", http.get("/predictions/tiny").json())
        validated("Health", unless_busy(lambda: http.get("/models/tiny/invoke?mode=health")).json())
        body = {"inputs": [tensor], "parameters": {"n": 500}}
        validated("InferRequest", body)
        validated("InferResponse", http.post("/v2/models/tiny/infer", json=body).json())


class Tally:
    """Counts of the statuses, and what is not allowed among them."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()

    def add(self, status: int, what: object) -> None:
        self.statuses[status] += 1
        assert 200 <= status < 300 or 400 <= status < 500 or status == 503, f"{status} for {what!r}"


@pytest.fixture
def target(tiny: Path, tmp_path: Path, engine: str) -> Iterator[Server]:
    """A server of its own, so that what it remembers is known."""
    with serving(tmp_path, str(tiny), "--max-n", "3000", token=None, engine=engine) as running:
        yield running


def memory(server: Server) -> tuple[int, int]:
    """Resident megabytes of the workers, and of the virtual machine or the launcher."""

    def size(pid: int) -> int:
        return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) // 1024

    return sum(map(size, server.workers())), size(server.pid)


def files() -> list[tuple[str, bytes]]:
    """Good bodies, to be damaged."""
    pixels = np.full((8, 8), 99, dtype=np.uint8)
    question = {"image": pixels.tolist(), "n": 500, "mode": "certify", "alpha": 0.01, "seed": 3}
    return [
        ("image/png", picture("PNG", (8, 8))),
        ("image/jpeg", picture("JPEG", (8, 8))),
        ("application/octet-stream", npy(pixels)),
        ("application/json", json.dumps(question).encode()),
    ]


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    """A good body with bytes changed, cut or put in; its type may be another's."""
    kind, body = draw(st.sampled_from(files()))
    content = bytearray(body)
    for _ in range(draw(st.integers(0, 6))):
        place = draw(st.integers(0, max(0, len(content) - 1)))
        patch = draw(st.binary(max_size=8))
        content[place : place + draw(st.integers(0, 8))] = patch
    kind = draw(st.sampled_from([kind, "application/json", "text/plain", "multipart/form-data", "", "\x7f"]))
    return kind, bytes(content)


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(1500)
def test_two_thousand_strange_requests(target: Server, engine: str) -> None:
    import schemathesis

    tally = Tally()
    workers = target.workers()
    with target.http() as http:
        ask_damaged(http, tally, examples=400)
        before = memory(target)
        schema = schemathesis.openapi.from_dict(openapi.document(engine))
        for result in schema.get_all_operations():
            ask_operation(http, result.ok(), tally)  # type: ignore[union-attr]
        ask_damaged(http, tally, examples=800)
        ask_headers(http, tally)
        assert http.post("/predictions/tiny", json={"image": [[9] * 8] * 8, "n": 500}).status_code == 200
    after = memory(target)
    print_out(
        f"{engine}: {sum(tally.statuses.values())} requests: {dict(tally.statuses)}; megabytes {before} -> {after}"
    )
    assert sum(tally.statuses.values()) >= 2000
    assert target.workers() == workers, "a worker was restarted"
    assert after[0] <= before[0] + 30
    assert after[1] <= before[1] + 150


def print_out(text: str) -> None:
    import sys

    sys.stdout.write(f"\n{text}\n")


def ask_operation(http: httpx.Client, operation: Any, tally: Tally) -> None:
    """Requests the document allows, and requests it forbids."""
    from schemathesis import GenerationMode

    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
            continue

        @settings(LOOSE, max_examples=80)
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            case.path_parameters = {"model": "tiny", "version": "1"}
            response = case.call(base_url=str(http.base_url), timeout=250)
            # TorchServe's own answer to a form with a field that has no name; such a form never reaches a worker.
            nameless = response.status_code == 500 and "IllegalArgumentException: empty name" in response.text
            tally.add(400 if nameless else response.status_code, case)

        ask()


def ask_damaged(http: httpx.Client, tally: Tally, *, examples: int) -> None:
    """Damaged files, straight and in forms."""

    @settings(LOOSE, max_examples=examples)
    @given(damaged(), st.sampled_from(["/predictions/tiny", "/models/tiny/invoke?n=500", "/v2/models/tiny/infer"]))
    def ask(body: tuple[str, bytes], address: str) -> None:
        kind, content = body
        if kind == "multipart/form-data":
            response = http.post(address, files={"image": ("x", content, "image/png")}, data={"n": "500"})
        else:
            response = http.post(address, content=content, headers={"Content-Type": kind} if kind else {})
        tally.add(response.status_code, body)

    ask()


def ask_headers(http: httpx.Client, tally: Tally) -> None:
    """Headers, field names and paths that try to look like a server's own."""
    good = json.dumps({"image": [[9] * 8] * 8, "n": 500}).encode()
    names = ["url_path", "explain", "describe", "ts_stream_next", "ts_request_sequence_id", "X-Request-Id", "body"]
    for name in names:
        for value in ("True", "../../x", "é".encode(), b"\xff\xfe", "{}", "[METRICS]x.y:1|#a:b|#type:COUNTER"):
            response = http.post("/predictions/tiny", content=good, headers={name: value})  # type: ignore[arg-type]
            tally.add(response.status_code, (name, value))
    for name in ("body", "image\r\n", "é", "a" * 5000, "[METRICS]", "__proto__"):
        response = http.post("/predictions/tiny", files={name: ("x", b"\x89PNG", "image/png")})
        tally.add(response.status_code, name)
    for path in (
        "/predictions/tiny/9",
        "/predictions/%2e%2e",
        "/predictions/tiny/1/../..",
        "/wf-predict/tiny",
        "/models",
    ):
        tally.add(http.post(path, content=good).status_code, path)
