"""The OpenAPI document, `openapi.json` beside this file: written by hand, but for what follows from something else.

That is the settings of a request, which stand in one table, and addresses and methods that are others of the same
thing. What only some engines have is marked with `x-engines`.

python -m robust.serve.service.openapi    # writes what follows into the document again, after something changed
"""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .fields import FIELDS

__all__ = ["PATH", "document", "filled", "whole_document"]

PATH = Path(__file__).with_name("openapi.json")

_MARK = "x-engines"
_ASGI = {_MARK: ["asgi"]}
_ASKING = ("/predictions/{model}", "/models/{model}/invoke")
_INVOCATIONS = "/invocations"
_VERSION = {"$ref": "#/components/parameters/version"}


def whole_document() -> dict[str, Any]:
    """The document of both engines."""
    return dict(json.loads(PATH.read_text()))


def document(engine: str) -> dict[str, Any]:
    """The document of one engine, as it is published."""
    found: dict[str, Any] = _of_engine(whole_document(), engine)
    return found


def _of_engine(node: Any, engine: str) -> Any:
    def is_there(child: Any) -> bool:
        return not isinstance(child, Mapping) or engine in child.get(_MARK, [engine])

    if isinstance(node, Mapping):
        return {key: _of_engine(child, engine) for key, child in node.items() if key != _MARK and is_there(child)}
    if isinstance(node, list):
        return [_of_engine(child, engine) for child in node if is_there(child)]
    return node


def filled(old: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the settings of today (in the query, in forms, in JSON, in the open protocol) and all paths."""
    new = copy.deepcopy(dict(old))
    schemas = new["components"]["schemas"]
    properties = {name: field.schema() | {"description": _description(name)} for name, field in FIELDS.items()}
    for name, own in (("Request", ("image", "dtype")), ("Form", ("image",))):
        schema = schemas[name]
        schema["properties"] = {key: schema["properties"][key] for key in own} | properties
    schemas["InferRequest"]["properties"]["parameters"]["properties"] = dict(properties)
    new["components"]["parameters"] |= {
        name: {"name": name, "in": "query", "schema": field.schema(), "description": _description(name)}
        for name, field in FIELDS.items()
    }
    paths = new["paths"]
    for path in _ASKING:
        # TorchServe drops the query at the first of the two.
        paths[path]["post"]["parameters"] = _settings({} if path.startswith("/models") else _ASGI)
        paths[path]["put"] = _renamed(paths[path]["post"], "Put", summary="The same, as curl -T sends it")
    _add_versions(paths)
    _add_invocations(paths)
    return new


def _settings(mark: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The parameters of a query that asks."""
    own = [{"$ref": f"#/components/parameters/{name}", **mark} for name in FIELDS]
    return [*own, {"$ref": "#/components/parameters/stream", **_ASGI}]


def _description(name: str) -> str:
    field = FIELDS[name]
    return field.help + (f" Default: {field.chosen}." if field.chosen else "")


def _renamed(operation: Mapping[str, Any], suffix: str, **changes: Any) -> dict[str, Any]:
    """A copy of an operation under another id."""
    return copy.deepcopy(dict(operation)) | {"operationId": operation["operationId"] + suffix} | changes


def _add_versions(paths: dict[str, Any]) -> None:
    """The addresses that name a version of the model."""
    for path, versioned, mark in (
        ("/predictions/{model}", "/predictions/{model}/{version}", {}),
        ("/v2/models/{model}", "/v2/models/{model}/versions/{version}", _ASGI),
        ("/v2/models/{model}/ready", "/v2/models/{model}/versions/{version}/ready", _ASGI),
        ("/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer", _ASGI),
    ):
        operations = _operations(paths[path], "Version")
        paths[versioned] = {"parameters": [*paths[path]["parameters"], _VERSION], **operations, **mark}
    metadata = _operations({"get": paths["/predictions/{model}"]["get"]}, "VersionMetadata")
    parameters = paths["/predictions/{model}/{version}"]["parameters"]
    paths["/predictions/{model}/{version}/metadata"] = {"parameters": parameters, **metadata}


def _add_invocations(paths: dict[str, Any]) -> None:
    """The address that names no model, or names it in the query."""
    name = {"$ref": "#/components/parameters/model_name"}
    paths[_INVOCATIONS] = {"parameters": [name], **_operations(paths["/models/{model}/invoke"], "Invocations")}
    # Whoever names no model gets its metadata here; whether it is ready is asked for by its name.
    get = paths["/predictions/{model}"]["get"]
    paths[_INVOCATIONS]["get"] = _renamed(get, "Invocations")


def _operations(path: Mapping[str, Any], suffix: str) -> dict[str, Any]:
    return {method: _renamed(path[method], suffix) for method in ("get", "post", "put") if method in path}


if __name__ == "__main__":
    PATH.write_text(json.dumps(filled(whole_document()), indent=1) + "\n")
