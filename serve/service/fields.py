"""The fields a request may have besides its image, as JSON, forms, query strings and the open protocol write them.

Names, types and words are those of `robustinfer.settings`. Whether a value lies within its limits is checked once, by
`Request`, and whether this server allows it by `limits`.
"""

import math
from collections.abc import Mapping
from typing import Any

from robustinfer.settings import MODE, SETTINGS, Setting, short

from .refusals import Refusal

__all__ = ["FIELDS", "from_json", "from_text"]

FIELDS: dict[str, Setting] = {MODE.name: MODE, **SETTINGS}
"""Every field, by name."""


def from_json(document: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a JSON object, checked by name and type."""
    fields = {name: _field(name) for name in document}  # a name nobody knows is refused, whatever its value
    return {name: _typed(fields[name], value) for name, value in document.items() if value is not None}


def from_text(fields: Mapping[str, str]) -> dict[str, Any]:
    """The settings of a form or a query string, where every value is text."""
    settings = {}
    for name, text in fields.items():
        field = _field(name)
        value = field.parse(text)
        settings[name] = _typed(field, text if value is None else value)
    return settings


def _field(name: str) -> Setting:
    if name not in FIELDS:
        raise Refusal.malformed(
            "unknown_field", f"There is no field {short(name)}; a request has image, dtype, {', '.join(FIELDS)}."
        )
    return FIELDS[name]


def _typed(field: Setting, value: Any) -> Any:
    if not field.fits(value):
        raise Refusal.malformed("wrong_type", str(field.refusal(value)))
    if field.kind is not float:
        return value
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Refusal.malformed("wrong_type", str(field.refusal(value)))
    return number
