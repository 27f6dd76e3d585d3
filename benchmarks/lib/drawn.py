"""Decisions about images like the published ones: what they cost, and the same drawn on a real engine.

`decisions` draws votes with the probabilities of published.py and feeds them to the procedures of the Predictor. A few
of them stand for all (`typical`): put in the order of their cost they are cut into groups of equal size, and the one
nearest the mean of its group is taken. Few images take most of the samples, so chosen at random they would have to be
many. `run_decisions` draws the noise of every sample, computes its scores with a model file and counts them as ever;
the votes that the decision then goes by are those that were drawn before, because a network of random parameters has
its own p_A.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.lib.published import PUBLISHED, population
from robustinfer import Card, Predictor
from robustinfer.crew import Crew, Pace
from robustinfer.jobs import Job
from robustinfer.questions import Question
from robustinfer.requests import Request
from robustinfer.scheduler import Board, run
from robustinfer.sharing import InOrder
from robustinfer.smoothing.estimates import Votes
from robustinfer.smoothing.tally import Scores, Tally

__all__ = ["RADII", "Decision", "decisions", "run_decisions", "typical"]

RADII = {0.12: (0.001, 0.25), 0.25: (0.001, 0.25, 0.5), 0.5: (0.001, 0.5, 1.0), 1.0: (0.001, 1.0)}
"""The radii that are decided, by the sigma of the published model."""

Labels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Decision:
    """One radius decided for one image: the question, and the label of every sample it took."""

    question: Question
    labels: Labels


def decisions(card: Card, image: npt.NDArray[np.uint8], *, images: int, seed: int) -> list[Decision]:
    """Radii decided for `images` images of each published model, with the Predictor's defaults.

    A decision depends on radius / sigma alone, so they are asked at the sigma of the card.
    """
    assert card.sigma is not None
    generator = np.random.default_rng(seed)
    found = []
    for model in PUBLISHED:
        drawn = population(model, images, generator)
        for radius in RADII[model.sigma]:
            question = Request(image=image, radius=radius * card.sigma / model.sigma, seed=1).ask(card)
            found += [Decision(question, _labels(question, p, generator)) for p in drawn.probabilities]
    return found


def _labels(question: Question, p: npt.NDArray[np.float64], generator: np.random.Generator) -> Labels:
    """The labels of the samples that the procedure asks for, until it ends."""
    procedure, parts = question.begin(), []
    wanted = next(procedure)
    while True:
        votes = generator.multinomial(wanted, p)
        parts.append(np.repeat(np.arange(len(p), dtype=np.uint8), votes))
        try:
            wanted = procedure.send(votes)
        except StopIteration:
            return np.concatenate(parts)


def typical(found: Sequence[Decision], count: int) -> list[Decision]:
    """A few decisions that stand for all."""
    ordered = sorted(found, key=lambda decision: len(decision.labels))
    chosen = []
    for group in np.array_split(np.arange(len(ordered)), count):
        sizes = np.array([len(ordered[place].labels) for place in group])
        chosen.append(ordered[group[int(np.abs(sizes - sizes.mean()).argmin())]])
    return chosen


@dataclass(frozen=True)
class _Played(Tally):
    """Counts the scores, then gives the votes that were drawn: a procedure sees no more of a wish than its sum."""

    labels: Labels = dataclasses.field(default_factory=lambda: np.empty(0, np.uint8))
    place: list[int] = dataclasses.field(default_factory=lambda: [0])

    def count(self, scores: Scores) -> Votes:
        entries = len(super().count(scores))
        first = self.place[0]
        self.place[0] += len(scores)
        return np.bincount(self.labels[first : self.place[0]], minlength=entries).astype(np.int64)


def run_decisions(predictor: Predictor, chosen: Sequence[Decision]) -> int:
    """Make the decisions together, as `Predictor.certify_many` does; returns the samples they took."""
    jobs = (
        Job(dataclasses.replace(one.question, tally=_Played(one.question.tally.classes, labels=one.labels)))
        for one in chosen
    )
    board = Board(predictor.engine, InOrder(), batch=predictor.batch, pace=Pace(), crew=Crew())
    for job, one in zip(run(board, jobs), chosen, strict=True):
        if job.error is not None:
            raise job.error
        assert job.drawn == len(one.labels)
    return board.samples
