"""Optional parts of the installation: imported where they are needed, named when they are missing."""

import importlib
from types import ModuleType

from .errors import MissingExtraError

__all__ = ["require"]


def require(module: str, *, extra: str, why: str) -> ModuleType:
    """Import `module`; if it, or something it needs, is not installed, say which extra to install.

    `why` is the subject of the sentence the user reads: "robust train needs an optional part ...".
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A module of ours that does not exist is a bug, not a missing extra.
        if (error.name or "").startswith("robust") and not (error.name or "").startswith("robust."):
            raise
        raise MissingExtraError(extra, why, error.name) from error
