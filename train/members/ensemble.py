"""The ensemble f = sum_t beta_t f_wt, summing scores."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

__all__ = ["Ensemble"]


class Ensemble(nn.Module):
    """Members and their betas: pixels in [0,1] to scores. `betas` is a buffer, so it moves and saves with it."""

    betas: Tensor

    def __init__(self, members: Sequence[nn.Module], betas: Sequence[float] | Tensor) -> None:
        super().__init__()
        if not members or len(members) != len(betas):
            raise ValueError(f"An ensemble has one beta per member; found {len(members)} members, {len(betas)} betas.")
        self.members = nn.ModuleList(members)
        self.register_buffer("betas", torch.as_tensor(betas, dtype=torch.float32).detach().clone())

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.betas[0] * self.members[0](image)
        for beta, member in zip(self.betas[1:], self.members[1:], strict=True):
            scores = scores + beta * member(image)
        return scores

    def staged(self, image: Tensor) -> Iterator[Tensor]:
        """The scores of the first member, of the first two, and so on, with these betas."""
        total = torch.zeros((), device=image.device)
        for beta, member in zip(self.betas, self.members, strict=True):
            total = total + beta * member(image)
            yield total

    def stacked(self, image: Tensor) -> Tensor:
        """The scores of each member without its beta, of shape (members, batch, classes)."""
        return torch.stack([member(image) for member in self.members])

    def freeze(self) -> "Ensemble":
        """No gradients for the parameters, evaluation mode for batch normalisation: as boosting treats the past."""
        self.requires_grad_(False)
        return self.eval()
