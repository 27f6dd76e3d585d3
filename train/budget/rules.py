"""By which evidence a budget is spent: losses of the same held-out images before and after, compared in pairs.

Let d be the mean over images of (loss before - loss after) and s its standard error.

* The present part continues until two slices in a row have not paid: a slice pays with d >= PAYS s against the one
  before. One slice alone may be noise, and what it costs to go on is half of what the part has cost so far.
* A part that is retrained takes the place of its older self if its loss is lower at all: it costs as much to run.
* A further part joins the ensemble only if that is better by a paired test at the one-sided level 5 %: d >= JOINS s. So
  one network is what remains where nothing else is shown to be better than it.
* A part that no longer pays is followed by a head on the first member's trunk, which is the cheaper part, until one
  fails to join; then by a new member; and when that does not join either, what is left of the budget is not spent.

The held-out images are looked at after every slice, so their loss is optimistic; test images are not touched.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

__all__ = ["JOINS", "PAYS", "Evidence", "Move", "compare", "next_move"]

PAYS, JOINS = 1.0, 1.645

Move = Literal["continue", "head", "member", "stop"]


@dataclass(frozen=True)
class Evidence:
    """A paired comparison over held-out images; a positive difference says that the loss fell."""

    images: int
    before: float
    after: float
    difference: float
    error: float

    def by(self, margin: float) -> bool:
        """Whether the loss fell by at least `margin` standard errors."""
        return self.difference > 0 and self.difference >= margin * self.error

    def to_json(self) -> dict[str, Any]:
        """The figures as a JSON object."""
        return {
            "images": self.images,
            "before": self.before,
            "after": self.after,
            "difference": self.difference,
            "standard_error": self.error,
        }


def compare(before: Tensor, after: Tensor) -> Evidence:
    """The evidence of one loss per image each, of the same images in the same order."""
    if before.shape != after.shape or before.ndim != 1 or len(before) < 2:
        raise ValueError(f"Losses are paired by image; found shapes {tuple(before.shape)} and {tuple(after.shape)}.")
    gain = before.double() - after.double()
    error = float(gain.std()) / math.sqrt(len(gain))
    return Evidence(len(gain), float(before.double().mean()), float(after.double().mean()), float(gain.mean()), error)


def next_move(present: Literal["member", "head"], *, pays: bool, joined: bool, heads: bool) -> Move:
    """What the next slice is spent on. `joined`: the present part is in the ensemble. `heads`: one may be tried."""
    if pays:
        return "continue"
    if present == "member":
        return ("head" if heads else "member") if joined else "stop"
    return "head" if joined and heads else "member"
