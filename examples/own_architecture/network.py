"""An architecture of one's own: any `torch.nn.Module` that maps images to one score a class.

A recipe names it `network:build`; the module must be importable, so start the training from this folder or put the
folder on PYTHONPATH. Pixels arrive normalised; normalisation, its statistics and the weights of the ensemble are the
package's business.
"""

import torch
from torch import Tensor, nn

from robustinfer import InputSpec


class Mixer(nn.Module):
    """A small patch mixer: no convolution after the first layer, which none of the built-in architectures is like."""

    def __init__(self, spec: InputSpec, classes: int, *, patch: int = 4, width: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(spec.channels, width, kernel_size=patch, stride=patch)
        count = (spec.height // patch) * (spec.width // patch)
        self.between = nn.Sequential(nn.Linear(count, 2 * count), nn.GELU(), nn.Linear(2 * count, count))
        self.within = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        # A last nn.Linear called `head` lets the export fold the member's weight into it; without one it multiplies.
        self.head = nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        tokens = self.patches(image).flatten(2)
        tokens = tokens + self.between(tokens)
        tokens = tokens.transpose(1, 2)
        scores: Tensor = self.head((tokens + self.within(tokens)).mean(dim=1))
        return scores


def build(spec: InputSpec, classes: int) -> nn.Module:
    """Called once per member, with torch's random state set from the recipe's seed."""
    return Mixer(spec, classes)


if __name__ == "__main__":
    print(build(InputSpec(3, 32, 32), 5)(torch.zeros(2, 3, 32, 32)).shape)
