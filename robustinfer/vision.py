"""MNIST and CIFAR-10 as arrays, read by torchvision, which checks the files. Nothing else in this package needs it.

torchvision registers shape functions for two detection operators while it is imported. When its compiled part does not
fit the installed torch (the usual case: the CUDA build beside a CPU torch), those operators do not exist and the import
fails, although the data sets this package needs are plain Python. Declaring the two names lets the import go through;
nothing here ever calls them.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import DataError
from .extras import needed

__all__ = ["vision_arrays"]

_KINDS = {"mnist": "MNIST", "cifar10": "CIFAR10"}
_OPERATORS = ("nms", "qnms")
_declared: list[Any] = []  # torch forgets a declaration when its Library object is collected


def vision_arrays(
    name: str, split: str, root: str | Path, *, download: bool = False
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], tuple[str, ...]]:
    """Images (N, C, H, W), labels and class names of `mnist` or `cifar10` in the folder `root`."""
    with needed(extra="train", why=f"Reading {name}"):
        datasets = _datasets()
    try:
        data = getattr(datasets, _KINDS[name])(root=str(root), train=split == "train", download=download)
    except RuntimeError as error:
        raise DataError(
            f"There is no complete {name} in {root}: give the folder that holds it with --data, or add --download."
        ) from error
    images = np.asarray(data.data)
    images = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    classes = tuple(str(digit) for digit in range(10)) if name == "mnist" else tuple(data.classes)
    return np.ascontiguousarray(images), np.asarray(data.targets, dtype=np.int64), classes


def _datasets() -> Any:
    """The module `torchvision.datasets`."""
    try:
        return importlib.import_module("torchvision.datasets")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in _OPERATORS:
        schema = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define(schema)
    _declared.append(library)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    return importlib.import_module("torchvision.datasets")
