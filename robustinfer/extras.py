"""Optional parts of the installation: imported where they are needed, named when they are missing."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from .errors import MissingExtraError

__all__ = ["needed", "require"]


def require(module: str, *, extra: str, why: str) -> ModuleType:
    """Import `module`; if it, or something it needs, is not installed, say which extra to install.

    `why` is the subject of the sentence the user reads: "robust train needs an optional part ...".
    """
    with needed(extra=extra, why=why):
        return importlib.import_module(module)


@contextmanager
def needed(*, extra: str, why: str) -> Iterator[None]:
    """Around import statements: if what they name is not installed, say which extra to install.

    with needed(extra="train", why="robust train"):
        from robust.train import train
    """
    try:
        yield
    except ModuleNotFoundError as error:
        # A module of ours that does not exist is a bug, not a missing extra.
        if (error.name or "").startswith("robust") and not (error.name or "").startswith("robust."):
            raise
        raise MissingExtraError(extra, why, error.name) from error
