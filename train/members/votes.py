"""The weighted plurality vote h_Q = E_{h ~ Q}[h] of section 3.1, as an ensemble that gradient attacks can work on."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from .ensemble import Ensemble

__all__ = ["VoteEnsemble"]


class VoteEnsemble(Ensemble):
    """Members that vote: the score of a class is the sum of the betas of the members whose largest score it has.

    `betas` is the distribution Q. Votes are constant almost everywhere, so a gradient of them says nothing; backwards,
    each vote is taken for the member's probabilities ("straight through"). An attack on the vote thus pushes the
    members that are nearest to another label, and is judged by the vote. For one member it goes the way of an attack on
    the member's own cross-entropy.
    """

    def staged(self, image: Tensor) -> Iterator[Tensor]:
        """The votes of the first member, of the first two, and so on, with these betas."""
        total: Tensor | None = None
        for beta, scores in zip(self.betas, self.member_scores(image), strict=True):
            ballot = beta * _vote(scores)
            total = ballot if total is None else total + ballot
            yield total


def _vote(scores: Tensor) -> Tensor:
    vote = functional.one_hot(scores.argmax(dim=1), scores.shape[1]).to(scores.dtype)
    if torch.is_grad_enabled():
        soft = functional.softmax(scores, dim=1)
        vote = vote + (soft - soft.detach())
    return vote
