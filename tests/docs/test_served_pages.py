"""The pages that ask a server, against one that runs; and what docs/serving.md says of addresses and statuses."""

import re
from pathlib import Path

import httpx
import pytest

from robustinfer.data import digits

from .conftest import Quickstart
from .pages import examples, read
from .running import Runner, run_all
from .served import Served, serve
from .test_pages import SERVED

pytestmark = pytest.mark.server

PAGE = "docs/serving.md"


# One test, and so one start of the server, however the tests are spread over processes.
@pytest.mark.slow
@pytest.mark.representative
def test_examples_that_ask_a_server(quickstart: Quickstart, tmp_path: Path) -> None:
    assert {page.name for page in SERVED} == {"README.md", "serving.md", "python-api.md"}
    image = quickstart.image.read_bytes()
    with serve(quickstart.folder, "quickstart/digits.onnx", tmp_path / "serve.log") as served:
        abstain(served)
        for page in SERVED:
            folder = tmp_path / page.stem
            folder.mkdir()
            run_all(examples(page), Runner(folder, quickstart, served))
        compare_addresses(served, image)
        compare_statuses(served, image)
        compare_metrics(served)


def abstain(served: Served) -> None:
    """Eleven samples settle the label only if all agree, which is not so for every image; the metrics count this."""
    images, _ = digits("test")
    with served.http() as http:
        for seed, image in enumerate(images[:100]):
            question = {"image": image[0].tolist(), "dtype": "uint8", "mode": "predict", "n": 11, "seed": seed}
            if http.post("/predictions/digits", json=question).json()["abstained"]:
                return
    pytest.fail("the model never abstains")


def compare_addresses(served: Served, image: bytes) -> None:
    """Every address of the table answers, and without the token only the two that say so.

    This server is TorchServe; what the other engine has besides is tried by tests/serve/asgi/test_protocols.py.
    """
    found = re.findall(r"^\| `(GET|POST) (/\S+)` \| (.*) \|$", read(PAGE), re.MULTILINE)
    rows = [row for row in found if not row[2].startswith("asgi: ")]
    assert len(rows) == 6
    for method, address, meaning in rows:
        body = protocol_body(address) if "/v2/" in address else {"content": image} if method == "POST" else {}
        for client, granted in ((served.http(), True), (httpx.Client(base_url=served.url, timeout=250), False)):
            with client:
                answer = client.request(method, address.replace("NAME", "digits"), **body)
            expected = 200 if granted or "needs no token" in meaning else 401
            assert answer.status_code == expected, (method, address, answer.text)


def protocol_body(address: str) -> dict[str, object]:
    pixels = {"name": "image", "datatype": "UINT8", "shape": [1, 8, 8], "data": [0, 16] * 32}
    return {"json": {"inputs": [pixels], "parameters": {"n": 200}}}


def compare_statuses(served: Served, image: bytes) -> None:
    """Each status that a client can cause is caused; the others are those of a server that is full or broken."""
    listed = {
        int(number)
        for row in re.findall(r"^\| ([\d, ]+) \| (?!asgi: )", read(PAGE), re.MULTILINE)
        for number in row.split(",")
    }
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    with served.http() as http:
        found = {
            400: http.post(
                "/predictions/digits", content=b'{"image": [[0', headers={"Content-Type": "application/json"}
            ),
            401: http.post("/predictions/digits", content=image, headers={"Authorization": "Bearer wrong"}),
            404: http.post("/predictions/nobody", content=image),
            413: http.post("/predictions/digits", content=image + b"\0" * (9 << 20)),
            415: http.post("/predictions/digits", content=b"n=5", headers=form),
            422: http.post("/models/digits/invoke?n=500000", content=image),
        }
        answer = http.post("/models/digits/invoke?mode=predict", content=image)
    assert {number: answer.status_code for number, answer in found.items()} == {number: number for number in found}
    assert listed - set(found) == {500, 503, 507}
    assert answer.headers["X-Model-Digest"].startswith("sha256:")
    assert answer.headers["x-request-id"]


def compare_metrics(served: Served) -> None:
    """The metrics of the table are there after these requests, with their labels."""
    shown = httpx.get(served.metrics, timeout=250).text
    rows = re.findall(r"^\| `(robust_\w+)` \| (\w+) \| ([\w, ]+)", read(PAGE), re.MULTILINE)
    assert len(rows) == 6
    for name, kind, labels in rows:
        line = re.search(rf"^{name}(?:_bucket)?\{{(.*)\}}", shown, re.MULTILINE)
        assert line is not None, name
        assert f"# TYPE {name} {kind}" in shown
        for label in labels.strip().split(", "):
            assert f"{label}=" in line[1], (name, label)
