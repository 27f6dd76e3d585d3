"""What the model sees: some of the noisy copies of an image, and the class for which each votes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from robustinfer import Predictor
from robustinfer.pictures import data_uri
from robustinfer.requests import Request
from robustinfer.settings import GridDomain
from robustinfer.voting import scores_of

__all__ = ["View", "Views", "views"]


@dataclass(frozen=True)
class View:
    """One noisy copy, as a PNG file in an address, and its vote (None: its scores were not finite)."""

    picture: str
    label: int | None
    class_name: str | None


@dataclass(frozen=True)
class Views:
    """An image as it reached the model, and samples `first`, `first` + 1, ... of the seed."""

    picture: str
    seed: int
    first: int
    views: tuple[View, ...]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; the seed is text, because JavaScript rounds numbers of 64 bits."""
        return {
            "picture": self.picture,
            "seed": str(self.seed),
            "first": self.first,
            "views": [vars(view) for view in self.views],
        }


def views(
    predictor: Predictor,
    image: npt.NDArray[Any],
    *,
    count: int,
    seed: int | None = None,
    first: int = 0,
    domain: GridDomain | None = None,
) -> Views:
    """Draw samples as a certificate of this seed does: the same pixels, the same votes."""
    question = Request(image=image, seed=seed, domain=domain).ask(predictor.card)
    drawn = np.empty((count, *predictor.card.input.shape), dtype=np.float32)
    question.draw(first, drawn)
    scores = scores_of(predictor.engine, question.tally, drawn)
    labels = [_label(question.tally.count(scores[row : row + 1])) for row in range(count)]
    names = predictor.card.classes
    return Views(
        data_uri(image),
        question.seed,
        first,
        tuple(
            View(data_uri(copy), label, None if label is None else names[label])
            for copy, label in zip(drawn, labels, strict=True)
        ),
    )


def _label(votes: npt.NDArray[np.int64]) -> int | None:
    """The class that one sample voted for; where members vote, the last row has their plurality."""
    row = votes[-1] if votes.ndim > 1 else votes
    voted = int(row.argmax())
    return voted if voted < len(row) - 1 else None
