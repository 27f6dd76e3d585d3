"""A tiny model with known answers, for the tests of serving."""

from pathlib import Path

import numpy as np

from robustinfer import Card, InputSpec

from ..conftest import linear_graph


def brightness_model(path: Path, *, name: str = "tiny", shape: tuple[int, int, int] = (1, 8, 8)) -> Path:
    """A model file that tells dark (mean pixel below 0.25), medium and bright (above 0.75) images apart."""
    card = Card(classes=("dark", "medium", "bright"), input=InputSpec(*shape), name=name, sigma=0.25)
    size = card.input.size
    weights = np.repeat(np.array([[-4.0], [0.0], [4.0]], dtype=np.float32), size, axis=1) / np.float32(size)
    bias = np.array([1.5, 0.5, -2.5], dtype=np.float32)
    path.write_bytes(linear_graph(weights, bias, shape, card))
    return path
