"""The OpenAPI document, `openapi.json` beside this file, takes the settings of a request from their one table.

python -m robust.serve.service.openapi    # writes them into the document again, after the table changed
"""

import copy
import json
from pathlib import Path
from typing import Any

from .fields import FIELDS

__all__ = ["PATH", "document", "filled"]

PATH = Path(__file__).with_name("openapi.json")


def document() -> dict[str, Any]:
    """The document as it is published."""
    return dict(json.loads(PATH.read_text()))


def filled(old: dict[str, Any]) -> dict[str, Any]:
    """The document with the settings of today: in the query, in forms, in JSON and in the open protocol."""
    new = copy.deepcopy(old)
    schemas = new["components"]["schemas"]
    properties = {name: field.schema() | {"description": _description(name)} for name, field in FIELDS.items()}
    for name, own in (("Request", ("image", "dtype")), ("Form", ("image",))):
        schema = schemas[name]
        schema["properties"] = {key: schema["properties"][key] for key in own} | properties
    schemas["InferRequest"]["properties"]["parameters"]["properties"] = dict(properties)
    new["paths"]["/models/{model}/invoke"]["post"]["parameters"] = [
        {"name": name, "in": "query", "schema": field.schema(), "description": _description(name)}
        for name, field in FIELDS.items()
    ]
    return new


def _description(name: str) -> str:
    field = FIELDS[name]
    return field.help + (f" Default: {field.chosen}." if field.chosen else "")


if __name__ == "__main__":
    PATH.write_text(json.dumps(filled(document()), indent=1) + "\n")
