"""What may be spent, and what has been: seconds by a clock, or operations as they are counted."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from robustinfer.errors import ArgumentError

__all__ = ["Budget", "Purse"]

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_FIRST, _GROWTH = 1 / 16, 0.5  # the first slice of a part, of the whole; later ones, of what the part has cost so far


@dataclass(frozen=True)
class Budget:
    """An amount of seconds on this machine, or of floating-point operations anywhere."""

    amount: float
    unit: Literal["seconds", "operations"] = "seconds"

    def __post_init__(self) -> None:
        if not 0 < self.amount < float("inf"):
            raise ArgumentError(f"A budget is a positive number of {self.unit}; found {self.amount!r}.")

    @classmethod
    def time(cls, words: str) -> "Budget":
        """A budget of time: 90s, 45m, 1.5h or 1h30m; a number alone is in seconds."""
        parts = re.findall(r"([0-9]*\.?[0-9]+)([smh]?)", words.strip())
        if not parts or "".join(number + unit for number, unit in parts) != words.strip():
            raise ArgumentError(f"A budget of time is written as 90s, 45m or 1h30m; found {words!r}.")
        return cls(sum(float(number) * _UNITS[unit] for number, unit in parts))

    def to_json(self) -> dict[str, Any]:
        """The budget as a JSON object."""
        return {"amount": self.amount, "unit": self.unit}


class Purse:
    """A budget and what is left of it. `clock` gives seconds; `before` is what an earlier process had spent."""

    def __init__(self, budget: Budget, *, clock: Callable[[], float], before: float = 0.0) -> None:
        self.budget, self._clock, self._begun, self._spent = budget, clock, clock(), before

    @property
    def spent(self) -> float:
        """Seconds or operations so far."""
        passed = self._clock() - self._begun if self.budget.unit == "seconds" else 0.0
        return self._spent + passed

    @property
    def left(self) -> float:
        """What remains, at least 0."""
        return max(0.0, self.budget.amount - self.spent)

    def charge(self, operations: float) -> None:
        """Count operations, where they are what is paid with."""
        if self.budget.unit == "operations":
            self._spent += operations

    def slice(self, spent_on_part: float) -> float:
        """The next slice of a part: half of what it has cost, but at least a sixteenth of the budget.

        What would be left behind it is added, if that is less than another slice.
        """
        wanted = max(_FIRST * self.budget.amount, _GROWTH * spent_on_part)
        return wanted if self.left >= 2 * wanted else self.left
