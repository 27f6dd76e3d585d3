"""The words for kinds of bounds and noise, apart from their mathematics, so that `robust --help` waits for no scipy."""

from typing import Literal

__all__ = ["Bound", "NoiseKind"]

Bound = Literal["two-class", "top-class"]
NoiseKind = Literal["integer"]
