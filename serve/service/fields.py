"""The fields a request may have besides its image: one table for JSON, forms, query strings and the open protocol."""

import math
from collections.abc import Mapping
from typing import Any

from .refusals import Refusal

__all__ = ["FIELDS", "MODES", "from_json", "from_text"]

MODES = ("certify", "predict")

FIELDS: dict[str, type | tuple[str, ...]] = {
    "mode": MODES,
    "n": int,
    "n0": int,
    "alpha": float,
    "radius": float,
    "tolerance": float,
    "deadline": float,
    "seed": int,
    "sigma": float,
    "bound": ("two-class", "top-class"),
    "noise": ("integer", "continuous"),
}
"""Each field and its type, or the words it may hold."""

_CERTIFY_ONLY = ("n0", "radius", "tolerance", "deadline", "bound")
_LARGEST_SEED = 2**64 - 1


def from_json(document: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a JSON object, checked by name and type."""
    settings = {}
    for name, value in document.items():
        if value is not None:
            settings[name] = _value(name, value)
    return _consistent(settings)


def from_text(fields: Mapping[str, str]) -> dict[str, Any]:
    """The settings of a form or a query string, where every value is text."""
    settings = {}
    for name, text in fields.items():
        kind = _kind(name)
        if isinstance(kind, tuple):
            settings[name] = _value(name, text)
            continue
        try:
            settings[name] = _value(name, kind(text))
        except ValueError:
            raise _wrong(name, text) from None
    return _consistent(settings)


def _kind(name: str) -> Any:
    if name not in FIELDS:
        raise Refusal.malformed(
            "unknown_field", f"There is no field {_short(name)}; a request has image, dtype, {', '.join(FIELDS)}."
        )
    return FIELDS[name]


def _value(name: str, value: Any) -> Any:
    kind = _kind(name)
    if isinstance(kind, tuple):
        if isinstance(value, str) and value in kind:
            return value
        raise _wrong(name, value)
    # A bool is an int to Python, but no number to anybody who writes JSON.
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else int):
        raise _wrong(name, value)
    if kind is float:
        try:
            value = float(value)
        except OverflowError:
            raise _wrong(name, value) from None
        if not math.isfinite(value):
            raise _wrong(name, value)
    elif name == "seed" and not 0 <= value <= _LARGEST_SEED:
        raise Refusal.unacceptable("bad_setting", "seed is a whole number from 0 to 2^64 - 1.")
    return value


def _wrong(name: str, value: Any) -> Refusal:
    kind = FIELDS[name]
    wanted = " or ".join(kind) if isinstance(kind, tuple) else {int: "a whole number", float: "a finite number"}[kind]
    return Refusal.malformed("wrong_type", f"{name} is {wanted}; found {_short(value)}.")


def _consistent(settings: dict[str, Any]) -> dict[str, Any]:
    if settings.get("mode") == "predict":
        for name in _CERTIFY_ONLY:
            if name in settings:
                raise Refusal.unacceptable("bad_setting", f"{name} is for mode certify; the mode is predict.")
    return settings


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
