"""Nested lists of numbers, as JSON has them, become an array; anything else is refused before numpy sees it."""

from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from .refusals import Refusal

__all__ = ["array_of"]

_NUMBERS = {int, float}


def array_of(value: list[Any], name: str) -> npt.NDArray[Any]:
    """The array of whole or floating numbers that a list of any depth holds; `name` is its field.

    numpy would make room for the longest string in the place of every number: a body of one megabyte could ask for
    hundreds of gigabytes. So the kinds of all entries are looked at first.
    """
    level: list[Any] = value
    while level and (kinds := set(map(type, level))) == {list}:
        level = list(chain.from_iterable(level))
    if level and list in kinds:
        raise Refusal.malformed("wrong_type", f"The rows of {name} differ in length.")
    if level and not kinds <= _NUMBERS:
        raise Refusal.malformed("wrong_type", f"{name} holds something that is not a number.")
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError, RecursionError):
        raise Refusal.malformed("wrong_type", f"The rows of {name} differ in length.") from None
    if array.dtype.kind not in "iuf":  # whole numbers beyond 64 bits
        raise Refusal.malformed("wrong_type", f"{name} holds something that is not a number.")
    return array
