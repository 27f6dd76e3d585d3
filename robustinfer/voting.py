"""Votes of a model file: the tally its card asks for, and its engine's scores in the shape a tally counts."""

import numpy as np
import numpy.typing as npt

from .card import Card
from .engines import Engine
from .errors import CardError, ClassCountError
from .questions import Question
from .smoothing.estimates import Votes
from .smoothing.tally import Tally

__all__ = ["scores_of", "tally_of", "vote_betas", "votes_of"]

Scores = npt.NDArray[np.float32]


def vote_betas(card: Card) -> tuple[float, ...]:
    """The betas with which the members of a `votes` file vote; none for a file of ensemble scores."""
    if card.kind != "votes":
        return ()
    betas = tuple(member.beta for member in card.members)
    if not betas or min(betas) < 0 or not 0 < sum(betas) < float("inf"):
        raise CardError(
            "A card of the kind votes names its members with betas of at least 0, and one above 0; found "
            f"{list(betas)}."
        )
    return betas


def tally_of(card: Card, *, members: bool) -> Tally:
    """The tally of a model file."""
    return Tally(len(card.classes), vote_betas(card), members)


def scores_of(engine: Engine, tally: Tally, images: Scores) -> Scores:
    """The engine's scores of N images in the shape that the card promises: every sample must get its vote."""
    expected = (len(images), *([len(tally.betas)] if tally.betas else []), tally.classes)
    found = engine.scores(images)
    if found.shape != expected:
        whose = f" and {len(tally.betas)} voting members" if tally.betas else ""
        raise ClassCountError(
            f"The card has {tally.classes} classes{whose}, so {len(images)} images have scores of shape {expected}; "
            f"the graph gives {found.shape}."
        )
    return found


def votes_of(engine: Engine, question: Question, first: int, count: int, *, batch: int) -> Votes:
    """The votes of samples first, ..., first + count - 1 of a question, drawn by this thread alone."""
    tally = question.tally
    votes = tally.empty()
    buffer = np.empty((min(batch, count), *question.image.shape), dtype=np.float32)
    for start in range(first, first + count, max(len(buffer), 1)):
        out = buffer[: min(len(buffer), first + count - start)]
        question.draw(start, out)
        votes += tally.count(scores_of(engine, tally, out))
    return votes
