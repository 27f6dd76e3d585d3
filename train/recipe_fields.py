"""Fields that check themselves: one declaration gives the default, the sentence of help, the type and the limits.

An internal module of `recipe.py`, which declares each field of a training by `choice`, `number`, `text` or `flag`.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from robustinfer.errors import RecipeError

__all__ = ["choice", "describe", "flag", "number", "parse", "text", "validate"]

_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def text(default: str, help: str) -> Any:
    """A field that is free text."""
    return dataclasses.field(default=default, metadata={"kind": str, "help": help})


def flag(default: bool, help: str) -> Any:
    """A field that is true or false."""
    return dataclasses.field(default=default, metadata={"kind": bool, "help": help})


def choice(default: str, choices: tuple[str, ...], help: str) -> Any:
    """A field that is one of a few words."""
    return dataclasses.field(default=default, metadata={"kind": str, "help": help, "choices": choices})


def number(default: float, help: str, *, low: float = 0, high: float = math.inf, above: bool = False) -> Any:
    """A number within limits; whole if its default is an `int`. `above` excludes the lower limit itself."""
    return dataclasses.field(
        default=default, metadata={"kind": type(default), "help": help, "low": low, "high": high, "above": above}
    )


def describe(field: "dataclasses.Field[Any]") -> str:
    """What values a field takes, for messages and the documentation."""
    metadata = field.metadata
    if "choices" in metadata:
        return ", ".join(f'"{word}"' for word in metadata["choices"])
    words = _NAMES[metadata["kind"]]
    if "low" not in metadata:
        return words
    lower = f"above {metadata['low']:g}" if metadata["above"] else f"at least {metadata['low']:g}"
    upper = "2^62" if metadata["high"] == 2**62 else f"{metadata['high']:g}"
    return f"{words} {lower}" + (f" and at most {upper}" if metadata["high"] < math.inf else "")


def validate(field: "dataclasses.Field[Any]", value: Any) -> Any:
    """The value in the type of the field, or a `RecipeError` that says what was expected and what was found."""
    kind, metadata = field.metadata["kind"], field.metadata
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    wrong_type = not isinstance(value, kind) or (kind is not bool and isinstance(value, bool))
    if wrong_type or not _within(metadata, value):
        raise RecipeError(f"The field `{field.name}` is {describe(field)}; found {value!r}.")
    return value


def _within(metadata: Mapping[str, Any], value: Any) -> bool:
    if "choices" in metadata:
        return value in metadata["choices"]
    if "low" in metadata:
        below = value <= metadata["low"] if metadata["above"] else value < metadata["low"]
        return math.isfinite(value) and not below and value <= metadata["high"]
    return True


def parse(field: "dataclasses.Field[Any]", words: str) -> Any:
    """Read the value of `--set key=value` as the type of its field."""
    kind = field.metadata["kind"]
    words = words.strip()
    if kind is bool and words.lower() in ("true", "false"):
        return words.lower() == "true"
    if kind is str:
        return words.strip("\"'")
    try:
        return validate(field, kind(words.replace("_", "")) if kind in (int, float) else words)
    except ValueError:
        raise RecipeError(f"The field `{field.name}` is {describe(field)}; found {words!r}.") from None
