"""Refitting the weights: the convex optimum where it is known, and members that vanish."""

import pytest
import torch
from robust.train import Ensemble
from robust.train.attacks.accuracy import PgdAttack
from robust.train.boosting.betas import refit_betas, without_vanished
from robust.train.data.datasets import ImageData
from robust.train.data.pixels import TensorPixels
from torch import Tensor, nn
from torch.nn import functional

CPU = torch.device("cpu")


class Slope(nn.Module):
    """Scores (0, a x + b) of one pixel x."""

    def __init__(self, a: float, b: float) -> None:
        super().__init__()
        self.a, self.b = a, b

    def forward(self, image: Tensor) -> Tensor:
        score = self.a * image.flatten(1)[:, 0] + self.b
        return torch.stack([torch.zeros_like(score), score], dim=1)


@pytest.fixture
def noisy_pixels() -> ImageData:
    """Class 1 is brighter, with overlap, so that the best weight is finite."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 2
    pixels = (100 + 55 * labels + 40 * torch.randn(400, generator=generator)).clamp(0, 255).to(torch.uint8)
    return ImageData("pixels", TensorPixels(pixels.view(-1, 1, 1, 1)), labels, ("dark", "bright"))


def robust_loss(data: ImageData, betas: list[float], members: list[Slope], delta: float) -> float:
    """The exact supremum over the interval: the score is linear in x, so it is at one of its ends."""
    x = data.pixels.take(torch.arange(len(data))).double().flatten() / 255
    losses = []
    for end in ((x - delta).clamp(0, 1), (x + delta).clamp(0, 1)):
        score = sum((beta * (m.a * end + m.b) for beta, m in zip(betas, members, strict=True)), torch.zeros(()))
        scores = torch.stack([torch.zeros_like(score), score], dim=1)
        losses.append(functional.cross_entropy(scores, data.labels, reduction="none"))
    return float(torch.stack(losses).amax(0).mean())


def test_refit_reaches_the_minimum_of_the_robust_loss(noisy_pixels: ImageData) -> None:
    members = [Slope(4, -2), Slope(0, 1)]
    attack = PgdAttack(norm="linf", delta=0.05, steps=5)
    betas = refit_betas(Ensemble(members, [0.1, 0.0]), noisy_pixels, attack, device=CPU, seed=(0,))
    found = robust_loss(noisy_pixels, betas, members, 0.05)
    assert found < robust_loss(noisy_pixels, [0.1, 0.0], members, 0.05) - 0.03
    grid = [
        robust_loss(noisy_pixels, [betas[0] + a, betas[1] + b], members, 0.05)
        for a in (-0.3, -0.1, 0.1, 0.3)
        for b in (-0.3, 0.0, 0.3)
    ]
    assert found <= min(grid) + 1e-4, "no neighbour is better, and the problem is convex"


def test_refit_never_returns_worse_weights_than_it_started_from(noisy_pixels: ImageData) -> None:
    members = [Slope(4, -2), Slope(0, 1)]
    attack = PgdAttack(norm="linf", delta=0.05, steps=5)
    best = refit_betas(Ensemble(members, [0.1, 0.0]), noisy_pixels, attack, device=CPU, seed=(0,))
    again = refit_betas(Ensemble(members, best), noisy_pixels, attack, device=CPU, seed=(1,), rounds=1)
    before, after = (robust_loss(noisy_pixels, betas, members, 0.05) for betas in (best, again))
    assert after <= before + 1e-4


def test_members_with_a_vanishing_share_are_dropped(noisy_pixels: ImageData) -> None:
    """A large weight on tiny scores is a small share; a small weight on large scores is not."""
    members = [Slope(0.001, 0), Slope(40, -20), Slope(4, -2)]
    ensemble = Ensemble(members, [1.0, 0.1, 1.0])
    assert without_vanished(ensemble, [1.0, 0.1, 1.0], noisy_pixels, 0.05, CPU) == [0.0, 0.1, 1.0]
    assert without_vanished(ensemble, [1.0, 0.0, 0.0], noisy_pixels, 0.5, CPU) == [1.0, 0.0, 0.0]
