"""Norm balls B_p(delta): where a perturbation may be, how it moves, where it starts. A new norm is one class."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ..machine.randomness import Draws

__all__ = ["Ball", "L2Ball", "LinfBall", "ball"]


class Ball(ABC):
    """The perturbations z with norm at most `delta`, in pixel units, one per row of a batch."""

    def __init__(self, delta: float) -> None:
        self.delta = delta

    @abstractmethod
    def project(self, z: Tensor) -> Tensor:
        """The nearest perturbation inside the ball."""

    @abstractmethod
    def ascend(self, gradient: Tensor, length: float) -> Tensor:
        """The move of this length, in the ball's norm, that a linear function with this gradient rises most along."""

    @abstractmethod
    def random(self, shape: torch.Size, draws: Draws) -> Tensor:
        """A random perturbation inside the ball for each row."""

    def clip(self, x: Tensor, image: Tensor) -> Tensor:
        """The point nearest `x` that is in the ball around `image`, brought into [0,1].

        `image` itself is in [0,1], so the second step moves no coordinate away from it: the point stays in the ball.
        """
        return (image + self.project(x - image)).clamp_(0, 1)


class LinfBall(Ball):
    """Every pixel changes by at most delta."""

    def project(self, z: Tensor) -> Tensor:
        return z.clamp(-self.delta, self.delta)

    def ascend(self, gradient: Tensor, length: float) -> Tensor:
        return gradient.sign().mul_(length)

    def random(self, shape: torch.Size, draws: Draws) -> Tensor:
        return draws.uniform(shape).mul_(2 * self.delta).sub_(self.delta)


class L2Ball(Ball):
    """The Euclidean length of the change is at most delta."""

    def project(self, z: Tensor) -> Tensor:
        return z * (self.delta / _length(z)).clamp(max=1)

    def ascend(self, gradient: Tensor, length: float) -> Tensor:
        return gradient * (length / _length(gradient))

    def random(self, shape: torch.Size, draws: Draws) -> Tensor:
        """Uniform in the ball: a random direction, at a radius whose d-th power is uniform."""
        direction = draws.normal(shape)
        radius = draws.uniform(torch.Size((shape[0],))) ** (1 / direction[0].numel())
        return direction * ((self.delta * radius).view(-1, 1, 1, 1) / _length(direction))


def ball(norm: str, delta: float) -> Ball:
    """The ball of a recipe's `norm` and `delta`."""
    return LinfBall(delta) if norm == "linf" else L2Ball(delta)


def _length(z: Tensor) -> Tensor:
    """The Euclidean length of each row, never zero, in a shape that divides the batch."""
    length: Tensor = torch.linalg.vector_norm(z.flatten(1), dim=1).clamp_min(1e-12)
    return length.view(-1, *[1] * (z.ndim - 1))
