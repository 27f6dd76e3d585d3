"""Small convolutional networks for images of 8x8 to 32x32 pixels."""

import itertools

import torch
from torch import Tensor, nn

from robustinfer.card import InputSpec

from .strided import StridedConvolution

__all__ = ["LeNet", "SmallCNN"]


class SmallCNN(nn.Module):
    """Two convolutions and two linear layers.

    Images of 16 pixels and more are halved twice, smaller ones once, so that both end near 4x4 to 8x8. `kernel` is the
    side of the first convolution: a large one averages Gaussian noise out before the first non-linearity. `norm` puts
    batch normalisation behind each layer but the last; a model file has it folded into the layers.
    """

    def __init__(
        self, input: InputSpec, *, classes: int, width: float = 1.0, kernel: int = 3, norm: bool = False
    ) -> None:
        super().__init__()
        first, second, hidden = (max(1, round(size * width)) for size in (32, 64, 128))
        stride = 2 if min(input.height, input.width) >= 16 else 1
        height, breadth = (_halved(side if stride == 1 else _halved(side)) for side in (input.height, input.width))
        self.features = nn.Sequential(
            _first_convolution(input.channels, first, kernel, stride=stride, bias=not norm),
            *([nn.BatchNorm2d(first)] if norm else []),
            nn.ReLU(),
            nn.Conv2d(first, second, 3, stride=2, padding=1, bias=not norm),
            *([nn.BatchNorm2d(second)] if norm else []),
            nn.ReLU(),
            _Flatten(),
            nn.Linear(second * height * breadth, hidden, bias=not norm),
            *([nn.BatchNorm1d(hidden)] if norm else []),
            nn.ReLU(),
        )
        self.head = nn.Linear(hidden, classes)

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(image))
        return scores

    def parts(self) -> list[nn.Module]:
        """The network as a chain: two convolutions, the linear layer behind them, the head."""
        return [*_layers(self.features), self.head]


def _layers(features: nn.Sequential) -> list[nn.Module]:
    """Each convolution or linear layer with what follows it; images are flattened before the linear layer."""
    starts = [0, *(index for index, layer in enumerate(features) if index and isinstance(layer, nn.Conv2d))]
    starts += [index for index, layer in enumerate(features) if isinstance(layer, nn.Flatten)]
    return [features[start:end] for start, end in itertools.pairwise([*starts, len(features)])]


class _Flatten(nn.Flatten):
    """`nn.Flatten`, whose gradient has the layout of the images: the layer before it is slow where the two differ."""

    def forward(self, images: Tensor) -> Tensor:
        trained = images.requires_grad and not torch.compiler.is_compiling()  # a compiler chooses layouts itself
        if trained and images.is_contiguous(memory_format=torch.channels_last):
            images.register_hook(_channels_last)
        return super().forward(images)


def _channels_last(gradient: Tensor) -> Tensor:
    return gradient.contiguous(memory_format=torch.channels_last)


def _first_convolution(before: int, after: int, kernel: int, *, stride: int, bias: bool) -> nn.Conv2d:
    if stride == 2:
        return StridedConvolution(before, after, kernel, bias=bias)
    return nn.Conv2d(before, after, kernel, padding=kernel // 2, bias=bias)


def _halved(side: int) -> int:
    """The side after a convolution of stride 2 with padding 1."""
    return (side + 1) // 2


class LeNet(nn.Module):
    """conv 20, pool, conv 50, pool, linear 500: the network many published MNIST figures refer to."""

    def __init__(self, input: InputSpec, *, classes: int, width: float = 1.0) -> None:
        super().__init__()
        first, second, hidden = (max(1, round(size * width)) for size in (20, 50, 500))
        height, breadth = (((side - 4) // 2 - 4) // 2 for side in (input.height, input.width))
        self.features = nn.Sequential(
            nn.Conv2d(input.channels, first, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(max(0, second * height * breadth), hidden),
            nn.ReLU(),
        )
        self.head = nn.Linear(hidden, classes)

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(image))
        return scores

    def parts(self) -> list[nn.Module]:
        """The network as a chain: two convolutions, the linear layer behind them, the head."""
        return [*_layers(self.features), self.head]
