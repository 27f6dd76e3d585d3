"""The classification sets of torchvision, which checks their files. Nothing else in this package needs it.

torchvision registers shape functions for two detection operators while it is imported. When its compiled part does not
fit the installed torch (the usual case: the CUDA build beside a CPU torch), those operators do not exist and the import
fails, although the data sets this package needs are plain Python. Declaring the two names lets the import go through;
nothing here ever calls them.
"""

import importlib
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import MissingDataError, MissingExtraError
from ..extras import needed
from .vision_sets import SETS, refusal

__all__ = ["VisionPart", "is_divided", "torchvision_part", "vision_arrays"]

_KINDS = {"mnist": "MNIST", "cifar10": "CIFAR10"}
_FACES = ("angry", "disgusted", "afraid", "happy", "sad", "surprised", "neutral")
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
    if name not in SETS:
        raise MissingDataError(refusal(name))
    return bool(SETS[name])


def torchvision_part(
    name: str, split: str, root: str | Path, *, download: bool = False, called: str = ""
) -> VisionPart:
    """One part of a classification set that torchvision reads from the folder `root`; the whole if it has no parts."""
    arguments: dict[str, Any] = SETS[name].get(split, {}) if is_divided(name) else {}
    with needed(extra="train", why=f"Reading {called or name}"):
        datasets = _datasets()
    kind = getattr(datasets, name.partition("-")[0])
    if "download" in inspect.signature(kind.__init__).parameters or issubclass(kind, datasets.MNIST):
        arguments = {**arguments, "download": download}
    elif download:
        raise MissingDataError(f"torchvision cannot download {name}: {_by_hand(kind)}.")
    where = called or f"torchvision:{name}"
    missing = f"There is no complete {called or name} in {root}: give the folder that holds it as --data {where}:DIR"
    if "download" in arguments:
        missing += f", or fetch it with: robust data {where}:{root} --download"
    if name.startswith("Caltech") and not download and not (Path(root) / name.lower()).is_dir():
        raise MissingDataError(missing)  # torchvision would make the folder it looks for
    try:
        data = kind(root=str(root), **arguments)
    except (RuntimeError, FileNotFoundError) as error:
        if "h5py" in str(error):
            raise MissingExtraError("hdf5", f"Reading {name}", "h5py") from error
        raise MissingDataError(missing) from error
    return _special(name, data) or _part(data)


def _by_hand(kind: Any) -> str:
    documentation = f"{kind.__name__} in torchvision's documentation"
    return f"fetch its files by hand; {documentation} says where to get them and how to arrange them"


def _special(name: str, data: Any) -> VisionPart | None:
    """The sets that keep images or labels in a way of their own."""
    if name == "QMNIST":  # a row of facts per image, the class first
        return _arrays(data.data, data.targets[:, 0], data.classes)
    if name == "EMNIST-letters":  # counted from 1
        return _arrays(data.data, data.targets - 1, data.classes[1:])
    if name == "FER2013":
        images, labels = zip(*data._samples, strict=True)
        if None in labels:
            raise MissingDataError(
                "The labels of FER2013's test images are not in test.csv: give the folder of fer2013.csv or "
                "icml_face_data.csv."
            )
        return _arrays(np.stack([np.asarray(image) for image in images]), labels, _FACES)
    if name == "PCAM":
        folder, files = data._base_folder, data._FILES[data._split]
        with data.h5py.File(folder / files["images"][0]) as x, data.h5py.File(folder / files["targets"][0]) as y:
            return _arrays(x["x"][:], y["y"][:].reshape(-1), ("no tumour", "tumour"))
    if name == "CLEVRClassification":  # how many things are in the picture: three to ten
        counts = np.asarray(data._labels, dtype=np.int64) - 3
        return VisionPart(counts, tuple(map(str, range(3, 11))), files=tuple(map(Path, data._image_files)))
    if name.startswith("Caltech"):
        return _caltech(data, Path(data.root) / f"{name.removeprefix('Caltech')}_ObjectCategories")
    return None


def _caltech(data: Any, folder: Path) -> VisionPart:
    files = []
    for label, number in zip(data.y, data.index, strict=True):
        start = "image" if folder.name.startswith("101") else f"{label + 1:03d}"
        files.append(folder / data.categories[label] / f"{start}_{number:04d}.jpg")
    return VisionPart(np.asarray(data.y, dtype=np.int64), tuple(data.categories), files=tuple(files))


def _arrays(images: Any, labels: Any, classes: Sequence[str]) -> VisionPart:
    """Images in whatever order of axes, as (N, C, H, W)."""
    pixels = np.asarray(images)
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    elif pixels.shape[1] not in (1, 3):
        pixels = pixels.transpose(0, 3, 1, 2)
    return VisionPart(np.asarray(labels, dtype=np.int64), tuple(map(str, classes)), np.ascontiguousarray(pixels))


def _part(data: Any) -> VisionPart:
    """Images or files, whichever the set holds: torchvision has no common name for them."""
    pairs = next((getattr(data, key) for key in ("samples", "_samples", "imgs") if getattr(data, key, None)), None)
    if pairs:
        files, labels = zip(*pairs, strict=True)
    else:
        files = getattr(data, "_image_files", None) or getattr(data, "_images", None) or ()
        labels = next(getattr(data, key) for key in ("targets", "labels", "_labels") if hasattr(data, key))
    numbers = np.asarray(labels, dtype=np.int64)
    classes = tuple(str(name) for name in getattr(data, "classes", None) or range(int(numbers.max()) + 1))
    if files:
        return VisionPart(numbers, classes, files=tuple(map(Path, files)))
    return _arrays(data.data, numbers, classes)


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
