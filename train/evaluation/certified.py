"""Certified accuracy of a torch ensemble: the runtime's own procedures, fed from memory instead of from a file."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustinfer import Card, InputSpec, Predictor

from ..attacks.proportions import Proportion
from ..data.datasets import ImageData

__all__ = ["MemoryEngine", "certified_accuracy", "memory_predictor"]


class MemoryEngine:
    """An engine of the runtime around a torch module that is in memory."""

    def __init__(self, scores: Callable[[Tensor], Tensor], device: torch.device, *, batch: int = 1000) -> None:
        self._scores, self._device = scores, device
        self.name, self.device, self.batch = f"torch {torch.__version__} (in memory)", str(device), batch

    def scores(self, images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Scores (N, K) of images (N, C, H, W)."""
        with torch.inference_mode():
            # torch has no read-only tensors and warns of arrays that are: they are copied.
            pixels = torch.from_numpy(images if images.flags.writeable else images.copy())
            array: npt.NDArray[np.float32] = self._scores(pixels.to(self._device)).float().cpu().numpy()
        return array


def memory_predictor(
    scores: Callable[[Tensor], Tensor],
    *,
    classes: tuple[str, ...],
    input: InputSpec,
    sigma: float,
    device: torch.device,
) -> Predictor:
    """A predictor of a module in memory."""
    return Predictor(MemoryEngine(scores, device), Card(classes=classes, input=input, sigma=sigma))


def certified_accuracy(
    predictor: Predictor,
    data: ImageData,
    *,
    n: int,
    alpha: float,
    seed: int,
    advance: Callable[[int], None] = lambda images: None,
) -> dict[str, Any]:
    """The part of the images whose label is right and certified at each radius, in steps of a quarter from 0."""
    radii = np.full(len(data), -1.0)
    images = (data.take(torch.tensor([number]))[0].numpy() for number in range(len(data)))
    for number, certificate in enumerate(predictor.certify_many(images, n=n, alpha=alpha, seed=seed)):
        if certificate.label == int(data.labels[number]):
            radii[number] = certificate.radius
        advance(1)
    grid = [0.25 * step for step in range(int(max(0.0, radii.max()) / 0.25) + 2)]
    return {
        "n": n,
        "alpha": alpha,
        "sigma": predictor.card.sigma,
        "average_radius": float(radii.clip(min=0).mean()),
        "accuracy": [
            {"radius": radius, **Proportion(int((radii >= radius).sum()), len(data)).to_json()} for radius in grid
        ],
    }
