"""Tallies: what scores mean as votes, for a file of ensemble scores and for one of members' scores."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .estimates import Votes

__all__ = ["Scores", "Tally", "count_votes", "plurality"]

Scores = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Tally:
    """How the votes of samples are counted.

    For a file of ensemble scores, a sample has one vote: its class of largest score. In a `votes` file the members have
    `betas` and the graph gives each member's scores, (N, members, K). With `members`, votes are counted for each of
    them: an array of one row a member, and a last row for the plurality vote of each sample. Otherwise only the
    plurality votes are counted. Every row has an entry a class, and one more for votes that are not valid.
    """

    classes: int
    betas: tuple[float, ...] = ()
    members: bool = False

    def empty(self) -> Votes:
        """No votes yet."""
        entries = self.classes + 1
        return np.zeros((len(self.betas) + 1, entries) if self.members else entries, dtype=np.int64)

    def samples(self, votes: Votes) -> int:
        """How many samples these votes are of."""
        return int(votes[-1].sum() if self.members else votes.sum())

    def count(self, scores: Scores) -> Votes:
        """The votes of some samples, from their scores."""
        if not self.betas:
            return count_votes(scores)
        whole = count_votes(plurality(scores, self.betas))
        if not self.members:
            return whole
        return np.stack([*(count_votes(scores[:, member]) for member in range(len(self.betas))), whole])


def count_votes(scores: Scores) -> Votes:
    """Votes per class, and in one more entry the samples with a score that is not finite. The lower label wins ties."""
    classes = scores.shape[1]
    labels = scores.argmax(axis=1)
    labels[~np.isfinite(scores).all(axis=1)] = classes
    return np.bincount(labels, minlength=classes + 1).astype(np.int64)


def plurality(scores: Scores, betas: tuple[float, ...]) -> Scores:
    """h_Q(x): the share of the betas that votes for each class, (N, K), from members' scores (N, members, K).

    A member whose scores are not finite votes for no class; where none votes, the row is not a number.
    """
    shares = np.asarray(betas) / sum(betas)
    valid = np.isfinite(scores).all(axis=2)
    votes = np.eye(scores.shape[2])[scores.argmax(axis=2)] * (valid * shares)[:, :, None]
    total = votes.sum(axis=1)
    total[~np.any(valid, axis=1)] = np.nan
    return np.asarray(total, dtype=np.float32)
