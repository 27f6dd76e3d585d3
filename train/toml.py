"""Reading TOML."""

import tomllib
from pathlib import Path
from typing import Any

__all__ = ["read_toml"]


def read_toml(path: Path) -> dict[str, Any]:
    """The document of a TOML file; a file that is none raises `ValueError`."""
    return tomllib.loads(path.read_text(encoding="utf-8"))
