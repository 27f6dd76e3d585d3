"""Tiny models with known answers, for the tests of serving."""

from pathlib import Path
from typing import Any

import numpy as np

from robustinfer import Card, InputSpec
from robustinfer.card import Resize

from ..conftest import linear_graph

Shape = tuple[int, int, int]


def _brightness(name: str, shape: Shape, resize: Resize = "refuse") -> tuple[Any, Any, Card]:
    """A model that tells dark (mean pixel below 0.25), medium and bright (above 0.75) apart: weights, bias, card."""
    card = Card(classes=("dark", "medium", "bright"), input=InputSpec(*shape, resize=resize), name=name, sigma=0.25)
    size = card.input.size
    weights = np.repeat(np.array([[-4.0], [0.0], [4.0]], dtype=np.float32), size, axis=1) / np.float32(size)
    return weights, np.array([1.5, 0.5, -2.5], dtype=np.float32), card


def brightness_model(path: Path, *, name: str = "tiny", shape: Shape = (1, 8, 8), resize: Resize = "refuse") -> Path:
    """The model as an ONNX file."""
    weights, bias, card = _brightness(name, shape, resize)
    path.write_bytes(linear_graph(weights, bias, shape, card))
    return path


def one_pixel_model(path: Path) -> Path:
    """A network of the same classes that looks at the first pixel alone, and so is fooled by changing it."""
    weights, bias, card = _brightness("ordinary", (1, 8, 8))
    weights[:, 0], weights[:, 1:] = weights[:, 0] * card.input.size, 0
    path.write_bytes(linear_graph(weights, bias, card.input.shape, card))
    return path


def brightness_script(path: Path, *, name: str, shape: Shape) -> Path:
    """The model as a TorchScript file, or, by its suffix, as a pt2 file."""
    import torch
    from robust.export import export_ensemble
    from robust.train.members.ensemble import Ensemble

    weights, bias, card = _brightness(name, shape)
    head = torch.nn.Linear(card.input.size, len(card.classes))
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(weights))
        head.bias.copy_(torch.from_numpy(bias))
    member = torch.nn.Sequential(torch.nn.Flatten(), head)
    export_ensemble(Ensemble([member], [1.0]).eval(), card, path, samples=100)
    return path
