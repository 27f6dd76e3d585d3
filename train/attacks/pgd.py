"""The inner maximisation: projected gradient ascent on the perturbation, differentiating the input only.

`loss` maps a batch of images to one loss per row. No attack here touches the gradients of a network's parameters:
call them with the networks frozen (`frozen`), so that none are computed either.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..machine.randomness import Draws
from .balls import Ball

__all__ = ["Loss", "frozen", "n_fgsm", "pgd"]

Loss = Callable[[Tensor], Tensor]


def pgd(loss: Loss, image: Tensor, *, ball: Ball, steps: int, step: float, draws: Draws | None) -> Tensor:
    """`steps` steps of length `step`, from a random point of the ball, or from the image if `draws` is None.

    The result is in the ball around the image and in [0,1].
    """
    x = image if draws is None else ball.clip(image + ball.random(image.shape, draws), image)
    for _ in range(steps):
        x = ball.clip(x + ball.ascend(_input_gradient(loss, x), step), image)
    return x


def n_fgsm(loss: Loss, image: Tensor, *, delta: float, draws: Draws) -> Tensor:
    """Noise uniform in twice the l_inf ball, then one step of delta, clipped to [0,1] only (de Jorge et al. 2022).

    The result may leave the ball of delta: that is what keeps the one-step attack from catastrophic overfitting.
    """
    noisy = image + draws.uniform(image.shape).mul_(4 * delta).sub_(2 * delta)
    return (noisy + delta * _input_gradient(loss, noisy).sign()).clamp_(0, 1)


def _input_gradient(loss: Loss, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(loss(x).sum(), x)
    return gradient


@contextmanager
def frozen(network: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients for the parameters, within the block; as it was afterwards.

    Batch normalisation must use its running statistics while the network is attacked: in training mode the statistics
    would follow the perturbation, and the attack would differ from the one that the finished network meets.
    """
    training = network.training
    learned = [parameter for parameter in network.parameters() if parameter.requires_grad]
    network.eval()
    for parameter in learned:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        network.train(training)
        for parameter in learned:
            parameter.requires_grad_(True)
