"""The OpenAPI document describes what each engine serves: no address more, none less, and answers as they come."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest
from robust.serve.asgi.application import Application
from robust.serve.page.routes import page_routes
from robust.serve.service import fields, openapi
from robust.serve.service.state import State
from starlette.routing import BaseRoute, Route

from ..conftest import ENGINES, Server, unless_busy

METHODS = ("get", "post", "put")
NOT_DESCRIBED = {
    ("options", "/"): "TorchServe's description of itself, which names models to strangers",
    ("get", "/api-description"): "the same",
    ("get", "/metrics"): "for Prometheus, at the port of the metrics",
    ("post", "/v1/models/{}:predict"): "version 1 of the protocol, whose bodies the handler does not read",
}
"""What TorchServe says that it serves, and the document leaves out."""


def operations(engine: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Method, path and description of all that the document offers."""
    for path, item in openapi.document(engine)["paths"].items():
        for method in METHODS:
            if method in item:
                yield method, path, item[method]


def anonymous(path: str) -> str:
    """An address without the names of what it has in braces."""
    return re.sub(r"\{.*?\}", "{}", path)


def addresses(routes: list[Any]) -> set[tuple[str, str]]:
    """Method and path of routes; a GET may be a HEAD everywhere."""
    assert all(isinstance(route, Route) for route in routes)
    return {(method.lower(), route.path) for route in routes for method in (route.methods or ()) if method != "HEAD"}


def test_the_document_describes_the_routes_of_the_engine_asgi_and_none_of_the_page() -> None:
    application = Application({}, state=State(None), max_body=1, read_seconds=1.0)
    described = {(method, path) for method, path, _ in operations("asgi")}
    assert described == addresses(application.routes)
    page: list[BaseRoute] = page_routes({}, permits=lambda _: False)
    # They belong to the page of the same version, and may change with it.
    assert not described & addresses(page)
    assert "The addresses of the page" in openapi.whole_document()["info"]["description"]


@pytest.mark.server
def test_the_document_describes_what_torchserve_says_that_it_serves(torchserve: Server) -> None:
    with torchserve.http() as http:
        paths = http.get("/api-description").json()["paths"]
    own = {(method, anonymous(path)) for path, item in paths.items() for method in item}
    described = {(method, anonymous(path)) for method, path, _ in operations("torchserve")}
    assert own - described == set(NOT_DESCRIBED)


def test_ids_are_unique_references_are_kept_and_settings_are_those_that_are_read() -> None:
    for engine in ENGINES:
        document = openapi.document(engine)
        ids = [operation["operationId"] for _, _, operation in operations(engine)]
        assert len(ids) == len(set(ids))
        text = json.dumps(document)
        assert '"x-engines":' not in text
        for reference in re.findall(r'"\$ref": "#/components/(\w+)/(\w+)"', text):
            assert reference[1] in document["components"][reference[0]]
    asking = openapi.document("asgi")["paths"]["/predictions/{model}"]["post"]["parameters"]
    assert [parameter["$ref"].rpartition("/")[2] for parameter in asking] == [*fields.FIELDS, "stream"]
    assert openapi.document("torchserve")["paths"]["/predictions/{model}"]["post"]["parameters"] == []


def question(path: str, method: str, image: np.ndarray[Any, Any], certificate: Any) -> dict[str, Any]:
    """A good request to an address."""
    if method == "get":
        return {"params": {"mode": "health"}} if path == "/models/{model}/invoke" else {}
    if path.endswith("/infer"):
        tensor = {"name": "image", "shape": [1, 8, 8], "datatype": "UINT8", "data": image.reshape(-1).tolist()}
        return {"json": {"inputs": [tensor], "parameters": {"n": 500}}}
    if path.endswith("/verify"):
        return {"json": {"certificate": certificate, "image": image.tolist()}}
    return {"json": {"image": image.tolist(), "n": 500}}


def check(engine: str, operation: Mapping[str, Any], response: httpx.Response) -> None:
    """The status is one of the operation's, and the body is as the document says."""
    document = openapi.document(engine)
    described = operation["responses"][str(response.status_code)]
    if "$ref" in described:
        described = document["components"]["responses"][described["$ref"].rpartition("/")[2]]
    kind = response.headers["content-type"].partition(";")[0]
    schema = described["content"][kind]["schema"]
    content = response.json() if kind == "application/json" else response.text
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(content)


@pytest.mark.server
def test_every_address_answers_as_the_document_says(server: Server, engine: str, image: np.ndarray[Any, Any]) -> None:
    with server.http() as http, httpx.Client(base_url=server.url, timeout=http.timeout) as stranger:
        certificate = http.post("/predictions/tiny", json={"image": image.tolist(), "n": 500}).json()
        for method, path, operation in operations(engine):
            address = path.format(model="tiny", version="1")
            more = question(path, method, image, certificate)
            if path == "/invocations":
                more["params"] = {"model_name": "tiny"}
            response = unless_busy(partial(http.request, method, address, **more))
            assert response.status_code == 200, f"{method} {path}: {response.text}"
            check(engine, operation, response)
            # The document says who needs the token, too.
            refused = unless_busy(partial(stranger.request, method, address, **more))
            public = operation.get("security", [None]) in ([], [{}, {"token": []}])
            assert refused.status_code == (200 if public else 401), f"{method} {path}"
            check(engine, operation, refused)


@pytest.mark.server
def test_events_are_as_the_document_says(asgi: Server, image: np.ndarray[Any, Any]) -> None:
    with asgi.http() as http:
        response = http.post("/predictions/tiny?stream=1", json={"image": image.tolist(), "n": 20_000})
    operation = openapi.document("asgi")["paths"]["/predictions/{model}"]["post"]
    check("asgi", operation, response)
    events = [re.match(r"event: (\w+)\ndata: (.*)$", event) for event in response.text.strip().split("\n\n")]
    components = openapi.document("asgi")["components"]
    names = []
    for event in events:
        assert event is not None
        names.append(event[1])
        schema = {"votes": "Votes", "answer": "Certificate"}[event[1]]
        reference = {"$ref": f"#/components/schemas/{schema}", "components": components}
        jsonschema.Draft202012Validator(reference).validate(json.loads(event[2]))
    assert names == ["votes"] * (len(names) - 1) + ["answer"]
