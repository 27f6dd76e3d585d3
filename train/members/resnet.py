"""Residual networks (He et al. 2016) in the two usual forms: three stages for small images, four for ImageNet."""

import itertools

from torch import Tensor, nn

__all__ = ["CifarResNet", "ImageNetResNet"]


class _Block(nn.Module):
    """The basic block: two 3x3 convolutions and the identity, or a 1x1 convolution where the shape changes."""

    expansion = 1

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, channels, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut = _shortcut(before, channels, stride)
        self.activation = nn.ReLU()

    def forward(self, features: Tensor) -> Tensor:
        result: Tensor = self.activation(self.body(features) + self.shortcut(features))
        return result


class _Bottleneck(nn.Module):
    """The block of the deep ImageNet networks: 1x1, 3x3 and 1x1 convolutions, four times as many channels out."""

    expansion = 4

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels * self.expansion, 1, bias=False),
            nn.BatchNorm2d(channels * self.expansion),
        )
        self.shortcut = _shortcut(before, channels * self.expansion, stride)
        self.activation = nn.ReLU()

    def forward(self, features: Tensor) -> Tensor:
        result: Tensor = self.activation(self.body(features) + self.shortcut(features))
        return result


def _shortcut(before: int, after: int, stride: int) -> nn.Module:
    if before == after and stride == 1:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after))


def _spread(blocks: int, stages: int) -> list[int]:
    """Blocks per stage, as even as possible; what is left over goes to the first stages."""
    return [blocks // stages + (stage < blocks % stages) for stage in range(stages)]


class _ResNet(nn.Module):
    """A stem, residual stages one after the other in `stages`, a pool and a linear layer; `counts` blocks per stage."""

    stem: nn.Module
    stages: nn.Sequential
    pool: nn.Module
    head: nn.Linear
    counts: list[int]

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.head(self.pool(self.stages(self.stem(image))))
        return scores

    def parts(self) -> list[nn.Module]:
        """The network as a chain: stem, stages, pool, head."""
        ends = [0, *itertools.accumulate(self.counts)]
        return [self.stem, *(self.stages[a:b] for a, b in itertools.pairwise(ends)), self.pool, self.head]


def _stages(
    block: type[_Block] | type[_Bottleneck], before: int, channels: list[int], counts: list[int]
) -> tuple[nn.Sequential, int]:
    """The residual stages, each after the first at half the resolution; also the number of channels they end with."""
    layers: list[nn.Module] = []
    for number, (width, count) in enumerate(zip(channels, counts, strict=True)):
        for index in range(count):
            layers.append(block(before, width, stride=2 if number and not index else 1))
            before = width * block.expansion
    return nn.Sequential(*layers), before


class CifarResNet(_ResNet):
    """Three stages of 16, 32 and 64 channels; depth = 2 * blocks + 2. Depths 12 and 18 spread their blocks evenly."""

    def __init__(self, depth: int, *, channels: int, classes: int, width: float = 1.0) -> None:
        super().__init__()
        sizes = [max(1, round(size * width)) for size in (16, 32, 64)]
        self.stem = nn.Sequential(
            nn.Conv2d(channels, sizes[0], 3, padding=1, bias=False), nn.BatchNorm2d(sizes[0]), nn.ReLU()
        )
        self.counts = _spread((depth - 2) // 2, 3)
        self.stages, features = _stages(_Block, sizes[0], sizes, self.counts)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(features, classes)


class ImageNetResNet(_ResNet):
    """A 7x7 stem, a pool and four stages of 64 to 512 channels.

    Depth 18, 20 and 32 are basic blocks (depth = 2 * blocks + 2), depth 50 is bottlenecks (3, 4, 6, 3).
    """

    def __init__(self, depth: int, *, channels: int, classes: int, width: float = 1.0) -> None:
        super().__init__()
        sizes = [max(1, round(size * width)) for size in (64, 128, 256, 512)]
        self.stem = nn.Sequential(
            nn.Conv2d(channels, sizes[0], 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(sizes[0]),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        block: type[_Block] | type[_Bottleneck] = _Bottleneck if depth == 50 else _Block
        self.counts = [3, 4, 6, 3] if depth == 50 else _spread((depth - 2) // 2, 4)
        self.stages, features = _stages(block, sizes[0], sizes, self.counts)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(features, classes)
