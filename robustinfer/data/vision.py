"""The classification sets of torchvision, which checks their files. Nothing else in this package needs it.

torchvision registers shape functions for two detection operators while it is imported. When its compiled part does not
fit the installed torch (the usual case: the CUDA build beside a CPU torch), those operators do not exist and the import
fails, although the data sets this package needs are plain Python. Declaring the two names lets the import go through;
nothing here ever calls them.
"""

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import MissingDataError
from ..extras import needed

__all__ = ["VisionPart", "is_divided", "torchvision_part", "vision_arrays"]

_KINDS = {"mnist": "MNIST", "cifar10": "CIFAR10"}
_TRAIN: dict[str, dict[str, Any]] = {"train": {"train": True}, "test": {"train": False}}
_SPLIT: dict[str, dict[str, Any]] = {"train": {"split": "train"}, "test": {"split": "test"}}
_TRAINVAL: dict[str, dict[str, Any]] = {"train": {"split": "trainval"}, "test": {"split": "test"}}
# The classification sets of torchvision, and how each is asked for its parts; sets without parts have none here.
_SETS: dict[str, dict[str, dict[str, Any]]] = {
    **dict.fromkeys(("MNIST", "FashionMNIST", "KMNIST", "CIFAR10", "CIFAR100", "USPS"), _TRAIN),
    **dict.fromkeys(("SVHN", "STL10", "GTSRB", "StanfordCars", "Food101", "Flowers102", "DTD", "Country211"), _SPLIT),
    "RenderedSST2": _SPLIT,
    **dict.fromkeys(("FGVCAircraft", "OxfordIIITPet"), _TRAINVAL),
    "Imagenette": {"train": {"split": "train"}, "test": {"split": "val"}},
    "EuroSAT": {},
    "SUN397": {},
}
_OPERATORS = ("nms", "qnms")
_declared: list[Any] = []  # torch forgets a declaration when its Library object is collected


@dataclass(frozen=True)
class VisionPart:
    """One part of a set of torchvision: images (N, C, H, W) or files, labels, and the names of the classes."""

    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    images: npt.NDArray[np.uint8] | None = None
    files: tuple[Path, ...] = ()


def vision_arrays(
    name: str, split: str, root: str | Path, *, download: bool = False
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], tuple[str, ...]]:
    """Images (N, C, H, W), labels and class names of `mnist` or `cifar10` in the folder `root`."""
    part = torchvision_part(_KINDS[name], split, root, download=download, called=name)
    assert part.images is not None
    classes = tuple(str(digit) for digit in range(10)) if name == "mnist" else part.classes
    return part.images, part.labels, classes


def is_divided(name: str) -> bool:
    """Whether a classification set of torchvision has a train and a test part."""
    if name not in _SETS:
        raise MissingDataError(f"torchvision:NAME takes one of {', '.join(_SETS)}; found {name!r}.")
    return bool(_SETS[name])


def torchvision_part(
    name: str, split: str, root: str | Path, *, download: bool = False, called: str = ""
) -> VisionPart:
    """One part of a classification set that torchvision reads from the folder `root`; the whole if it has no parts."""
    arguments = _SETS[name].get(split, {}) if is_divided(name) else {}
    with needed(extra="train", why=f"Reading {called or name}"):
        datasets = _datasets()
    try:
        data = getattr(datasets, name)(root=str(root), download=download, **arguments)
    except (RuntimeError, FileNotFoundError) as error:
        where = called or f"torchvision:{name}"
        raise MissingDataError(
            f"There is no complete {called or name} in {root}: give the folder that holds it as --data {where}:DIR, or "
            f"fetch it with: robust data {where}:{root} --download"
        ) from error
    return _part(data)


def _part(data: Any) -> VisionPart:
    """Images or files, whichever the set holds: torchvision has no common name for them."""
    pairs = getattr(data, "samples", None) or getattr(data, "_samples", None)
    if pairs:
        files, labels = zip(*pairs, strict=True)
    else:
        files = getattr(data, "_image_files", None) or getattr(data, "_images", None) or ()
        labels = next(getattr(data, key) for key in ("targets", "labels", "_labels") if hasattr(data, key))
    numbers = np.asarray(labels, dtype=np.int64)
    classes = tuple(str(name) for name in getattr(data, "classes", None) or range(int(numbers.max()) + 1))
    if files:
        return VisionPart(numbers, classes, files=tuple(map(Path, files)))
    images = np.asarray(data.data)
    if images.ndim == 3:
        images = images[:, None]
    elif images.shape[1] not in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    return VisionPart(numbers, classes, np.ascontiguousarray(images))


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
