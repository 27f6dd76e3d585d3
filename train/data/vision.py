"""torchvision, imported in a way that survives a build made for another torch.

torchvision registers shape functions for two detection operators while it is imported. When its compiled part does not
fit the installed torch (the usual case: the CUDA build beside a CPU torch), those operators do not exist and the import
fails, although the data sets and image readers this package needs are plain Python. Declaring the two names lets the
import go through; nothing here ever calls them.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

import torch

__all__ = ["datasets", "torchvision"]

_OPERATORS = ("nms", "qnms")
_declared: list[torch.library.Library] = []  # torch forgets a declaration when its Library object is collected


def torchvision() -> ModuleType:
    """The torchvision package."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for operator in _OPERATORS:
        schema = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    return importlib.import_module("torchvision")


def datasets() -> Any:
    """The module `torchvision.datasets`."""
    torchvision()
    return importlib.import_module("torchvision.datasets")
