"""A network made for speed on small images, after the fast CIFAR-10 trainers (Jordan 2024)."""

from torch import Tensor, nn

__all__ = ["FastCNN"]


class FastCNN(nn.Module):
    """A 2x2 stem, three groups of two 3x3 convolutions, each with a pool after the first, and one linear layer.

    Few wide layers and early pools keep a processor busier than many thin layers do. An image of 32x32 pixels takes 33
    million multiplications at `width` 0.5, which has half a million parameters. The stem has twice as many channels as
    a 2x2 patch has values. Images have at least 9 pixels a side: the pools halve them three times.
    """

    def __init__(self, *, channels: int, classes: int, width: float = 1.0) -> None:
        super().__init__()
        sizes = [max(1, round(size * width)) for size in (64, 256, 256)]
        stem = 8 * channels
        self.stem = nn.Sequential(nn.Conv2d(channels, stem, 2), nn.GELU())
        self.groups = nn.Sequential(
            *(_Group(before, after) for before, after in zip([stem, *sizes], sizes, strict=False))
        )
        self.pool = nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten())
        self.head = nn.Linear(sizes[-1], classes)

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.head(self.pool(self.groups(self.stem(image))))
        return scores

    def parts(self) -> list[nn.Module]:
        """The network as a chain: stem, groups, pool, head."""
        return [self.stem, *self.groups, self.pool, self.head]


class _Group(nn.Module):
    """Two convolutions with batch normalisation; a pool behind the first halves the side before the dear second."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.MaxPool2d(2),
            nn.BatchNorm2d(after),
            nn.GELU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.GELU(),
        )

    def forward(self, features: Tensor) -> Tensor:
        result: Tensor = self.body(features)
        return result
