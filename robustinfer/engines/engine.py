"""What an engine is, and what all of them share."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import DeviceError

__all__ = ["Engine", "cuda_index", "first_line", "good_batch"]


class Engine(Protocol):
    """Runs a scores graph. Any object with these attributes can be given to `Predictor`; it must be thread-safe."""

    @property
    def name(self) -> str:
        """For people: "onnxruntime 1.31.1 (CPUExecutionProvider)"."""

    @property
    def device(self) -> str:
        """Where it runs: "cpu", "cuda:0"."""

    @property
    def batch(self) -> int:
        """The number of samples that makes a good run."""

    def scores(self, images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Scores (N, K) of images (N, C, H, W)."""


def good_batch(values: int) -> int:
    """A good number of samples of `values` values for one run: a power of two from 16 to 1024.

    About 2^20 values of input (4 MB) make a run long enough to hide its fixed cost, and small enough for its
    activations: measured, speed no longer grows beyond it, and memory does (benchmarks/speed/certify_speed.py).
    """
    return max(16, min(1024, 1 << max(0, ((1 << 20) // max(values, 1)).bit_length() - 1)))


def cuda_index(device: str) -> int:
    """The number of the graphics card that `device` names, which is "cuda" (0) or "cuda:N"."""
    kind, _, index = device.partition(":")
    if kind != "cuda" or not (index or "0").isdigit():
        raise DeviceError(f"Expected a device auto, cpu, cuda or cuda:N, found {device!r}.")
    return int(index or 0)


def first_line(error: Exception) -> str:
    """What another package's error says first, without its full stop."""
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__
