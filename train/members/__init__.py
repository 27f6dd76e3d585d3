"""Members: the base predictors f_w that boosting adds up, by name or from the user's own `module:factory`."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from robustinfer.card import InputSpec
from robustinfer.errors import RecipeError

from .cnn import LeNet, SmallCNN
from .factory import Factory
from .fast import FastCNN
from .resnet import CifarResNet, ImageNetResNet
from .trunk import Trunk

__all__ = ["Member", "architectures", "build_member"]


class Member(nn.Module):
    """One base predictor: pixels in [0,1] to scores, with the normalisation inside."""

    mean: Tensor
    std: Tensor
    trunk: Trunk | None = None
    """The part of the network that other members have as well; None for a member that shares nothing."""

    def __init__(self, network: nn.Module, *, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.reshape(1, -1, 1, 1).clone())
        self.register_buffer("std", std.reshape(1, -1, 1, 1).clone())
        self.network = network

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.network((image - self.mean) / self.std)
        return scores

    def train(self, mode: bool = True) -> "Member":
        """Training mode, but for a trunk that is not trained."""
        super().train(mode)
        if self.trunk is not None and self.trunk.frozen:
            for layer in self.trunk.layers:
                layer.eval()
        return self

    @property
    def head(self) -> nn.Linear | None:
        """The linear layer that gives the scores, into which its beta can be folded; None if there is none."""
        head = getattr(self.network, "head", None)
        return head if isinstance(head, nn.Linear) else None


_Factory = Callable[[InputSpec, int, float], nn.Module]


def _cifar(depth: int) -> _Factory:
    return lambda spec, classes, width: CifarResNet(depth, channels=spec.channels, classes=classes, width=width)


def _imagenet(depth: int) -> _Factory:
    return lambda spec, classes, width: ImageNetResNet(depth, channels=spec.channels, classes=classes, width=width)


_ARCHITECTURES: dict[str, _Factory] = {
    "cnn": lambda spec, classes, width: SmallCNN(spec, classes=classes, width=width),
    "cnn7": lambda spec, classes, width: SmallCNN(spec, classes=classes, width=width, kernel=7),
    "cnn7-norm": lambda spec, classes, width: SmallCNN(spec, classes=classes, width=width, kernel=7, norm=True),
    "fast": lambda spec, classes, width: FastCNN(channels=spec.channels, classes=classes, width=width),
    "lenet": lambda spec, classes, width: LeNet(spec, classes=classes, width=width),
    **{f"resnet{depth}": _cifar(depth) for depth in (12, 18, 20, 32, 110)},
    **{f"imagenet-resnet{depth}": _imagenet(depth) for depth in (18, 20, 32, 50)},
}


def architectures() -> tuple[str, ...]:
    """The names of the built-in architectures."""
    return tuple(_ARCHITECTURES)


def build_member(
    architecture: str,
    *,
    input: InputSpec,
    classes: int,
    mean: Tensor,
    std: Tensor,
    width: float = 1.0,
    seed: int = 0,
) -> Member:
    """A fresh member, the same for the same seed, checked to map two images to two rows of scores.

    `module:factory` imports `module` and calls `factory(input, classes)`, or `factory()` if it takes no such arguments;
    it returns any `torch.nn.Module`. `module:factory(...)` calls it with the literals in the brackets instead.
    """
    with torch.random.fork_rng(devices=[]):  # initial parameters come from torch's global stream: leave it as it was
        torch.manual_seed(seed)
        network = _network(architecture, input, classes, width)
    member = Member(network, mean=mean, std=std)
    _check(member, architecture, input, classes)
    return member


def _network(architecture: str, input: InputSpec, classes: int, width: float) -> nn.Module:
    if architecture in _ARCHITECTURES:
        return _ARCHITECTURES[architecture](input, classes, width)
    if ":" not in architecture:
        raise RecipeError(
            f"An architecture is one of {', '.join(_ARCHITECTURES)}, or module:factory; found {architecture!r}."
        )
    return Factory.find(architecture).make(input, classes)


def _check(member: Member, architecture: str, input: InputSpec, classes: int) -> None:
    """Run two grey images through it: a member that does not fit the data is refused before hours are spent."""
    training = member.training
    try:
        with torch.no_grad():
            found = tuple(member.eval()(torch.full((2, *input.shape), 0.5)).shape)
    except RuntimeError as error:
        sentence = str(error).splitlines()[0]
        raise RecipeError(f"{architecture} does not take images of shape {input.shape}: {sentence}") from error
    finally:
        member.train(training)
    if found != (2, classes):
        raise RecipeError(f"{architecture} gives scores of shape {found} for two images; expected {(2, classes)}.")
