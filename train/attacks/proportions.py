"""A proportion of images, with its confidence interval."""

from dataclasses import dataclass
from typing import Any

from robustinfer.smoothing.bounds import clopper_pearson_interval

__all__ = ["Proportion"]


@dataclass(frozen=True)
class Proportion:
    """`count` of `images`, with a 95 % Clopper-Pearson interval for the proportion among all images of this kind."""

    count: int
    images: int

    @property
    def value(self) -> float:
        """The proportion itself."""
        return self.count / self.images

    @property
    def interval(self) -> tuple[float, float]:
        """The interval: it misses the true proportion with probability at most 5 %."""
        return clopper_pearson_interval(self.count, self.images, 0.95)

    def to_json(self) -> dict[str, Any]:
        """Proportion (as `rate`), count and interval."""
        low, high = self.interval
        return {"rate": self.value, "count": self.count, "images": self.images, "low": low, "high": high}

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.value:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
