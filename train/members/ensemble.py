"""The ensemble f = sum_t beta_t f_wt, summing scores."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from .trunk import shared_trunk

__all__ = ["Ensemble"]


class Ensemble(nn.Module):
    """Members and their betas: pixels in [0,1] to scores. `betas` is a buffer, so it moves and saves with it.

    A trunk that all members share is passed once.
    """

    betas: Tensor

    def __init__(self, members: Sequence[nn.Module], betas: Sequence[float] | Tensor) -> None:
        super().__init__()
        if not members or len(members) != len(betas):
            raise ValueError(f"An ensemble has one beta per member; found {len(members)} members, {len(betas)} betas.")
        self.members = nn.ModuleList(members)
        self.register_buffer("betas", torch.as_tensor(betas, dtype=torch.float32).detach().clone())
        self.trunks = shared_trunk(members)

    def forward(self, image: Tensor) -> Tensor:
        *_, scores = self.staged(image)
        return scores

    def staged(self, image: Tensor) -> Iterator[Tensor]:
        """The scores of the first member, of the first two, and so on, with these betas."""
        total: Tensor | None = None
        for beta, scores in zip(self.betas, self.member_scores(image), strict=True):
            total = beta * scores if total is None else total + beta * scores
            yield total

    def stacked(self, image: Tensor) -> Tensor:
        """The scores of each member without its beta, of shape (members, batch, classes)."""
        return torch.stack(list(self.member_scores(image)))

    def member_scores(self, image: Tensor) -> Iterator[Tensor]:
        """The scores of each member without its beta, one after the other."""
        if self.trunks is None:
            yield from (member(image) for member in self.members)
        else:
            features = self.trunks[0].features(image)
            yield from (trunk.scores(features) for trunk in self.trunks)

    def freeze(self) -> "Ensemble":
        """No gradients for the parameters, evaluation mode for batch normalisation: as boosting treats the past."""
        self.requires_grad_(False)
        return self.eval()
