"""Reading TOML: the standard library from Python 3.11 on, `tomli` (the same code) before."""

import importlib
import sys
from pathlib import Path
from typing import Any

__all__ = ["read_toml"]

_tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


def read_toml(path: Path) -> dict[str, Any]:
    """The document of a TOML file; a file that is none raises `ValueError`."""
    document: dict[str, Any] = _tomllib.loads(path.read_text(encoding="utf-8"))
    return document
