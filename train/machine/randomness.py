"""Random numbers that depend on where they are used, not on what was drawn before.

Each step of a training has its own stream, keyed by (seed, stage, epoch, step). A training that is resumed at a step
therefore draws what the uninterrupted one would have drawn. All processes of a distributed training draw for the whole
batch and keep their own rows, so that the numbers do not depend on how many processes share the batch.
"""

import numpy as np
import torch
from torch import Tensor

__all__ = ["Draws", "derive_seed", "generator"]


def derive_seed(*key: int) -> int:
    """A 63-bit seed from a key of whole numbers; different keys give unrelated seeds."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(*key: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator keyed by whole numbers."""
    return torch.Generator(device=device).manual_seed(derive_seed(*key))


class Draws:
    """The random numbers of one batch.

    `rows` of the `total` rows of the batch are drawn for this process; a shape's first axis is the rows of the process.
    """

    def __init__(
        self, *key: int, device: torch.device | str = "cpu", rows: slice = slice(None), total: int | None = None
    ) -> None:
        self._generator = generator(*key, device=device)
        self._rows, self._total, self._device = rows, total, device

    def uniform(self, shape: torch.Size) -> Tensor:
        """Uniform on [0,1)."""
        return torch.rand(self._whole(shape), generator=self._generator, device=self._device)[self._rows]

    def normal(self, shape: torch.Size) -> Tensor:
        """Standard normal."""
        return torch.randn(self._whole(shape), generator=self._generator, device=self._device)[self._rows]

    def integers(self, high: int, shape: torch.Size) -> Tensor:
        """Uniform on 0 ... high - 1."""
        return torch.randint(high, self._whole(shape), generator=self._generator, device=self._device)[self._rows]

    def _whole(self, shape: torch.Size) -> torch.Size:
        return shape if self._total is None else torch.Size((self._total, *shape[1:]))
