"""A model with everything a page shows beside it, whose answers are known.

The certified model tells dark, medium and bright apart by the mean pixel; the ordinary network looks at one pixel only,
so that a change of 0.15 fools it. Both are linear: the distance to the next label is known exactly.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from robustinfer import Predictor
from robustinfer.attacked import Attacked, AttackedImage, save_attacked

from ..models import brightness_model, one_pixel_model

Array = np.ndarray[Any, Any]

BRIGHT, UNDECIDED = 230, 191  # constant pictures: well above 0.75, and just at it


def constant(level: int) -> Array:
    return np.full((1, 8, 8), level, dtype=np.uint8)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `robust quickstart` leaves it: a model, an ordinary network, attacked images and some pictures."""
    path = tmp_path_factory.mktemp("page")
    brightness_model(path / "tiny.onnx")
    one_pixel_model(path / "ordinary.onnx")
    (path / "images").mkdir()
    for name, level in {"bright": BRIGHT + 1, "undecided": UNDECIDED}.items():
        Image.fromarray(constant(level)[0]).save(path / "images" / f"{name}.png")
    original, changed = constant(BRIGHT), constant(BRIGHT - 8)
    changed[0, 0, 0] = 178
    distance = float(np.linalg.norm(changed.astype(float) - original)) / 255
    example = AttackedImage(
        index=7, truth=2, fooled=1, answered=2, distance=distance, radius=0.5, original=original, changed=changed
    )
    attacked = Attacked("one pixel", 0.5, 20, images=1, clean=1, robust=0, certified=1, fooled=1, examples=(example,))
    save_attacked(path / "attacked.npz", attacked)
    return path


def two_models(folder: Path) -> tuple[Path, Path]:
    """Files of different noise, the lesser first: the model of the folder, and another one beside it."""
    second = folder / "second.onnx"
    return folder / "tiny.onnx", second if second.exists() else brightness_model(second, name="second", sigma=0.5)


@pytest.fixture(scope="session")
def shown(folder: Path) -> Predictor:
    """The certified model."""
    return Predictor.load(folder / "tiny.onnx", threads=1)


@pytest.fixture(scope="session")
def ordinary(folder: Path) -> Predictor:
    """The network that one pixel decides."""
    return Predictor.load(folder / "ordinary.onnx", threads=1)
