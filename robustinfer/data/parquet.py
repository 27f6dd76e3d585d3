"""Data sets of Hugging Face `datasets`: parquet files with a column of encoded pictures and one of labels."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError, MissingDataError
from ..extras import require

__all__ = ["EncodedPart", "parquet_parts"]

_IMAGES, _LABELS = ("image", "img", "picture"), ("label", "labels", "fine_label", "class")
_PARTS = {"train": ("train",), "test": ("test", "validation", "valid", "val")}


@dataclass(frozen=True)
class EncodedPart:
    """One part of a set: the bytes of its pictures, labels, class names, and groups if there is such a column."""

    pictures: tuple[bytes, ...]
    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    groups: npt.NDArray[Any] | None = None


def parquet_parts(path: Path) -> Mapping[str, Callable[[], EncodedPart]]:
    """The parts of a folder of parquet files, by their names (train-00000-of-00002.parquet); "" if it has none."""
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path] if path.is_file() else []
    if not files:
        raise MissingDataError(f"There is no parquet file {path}, nor one in a folder of that name.")
    found: dict[str, list[Path]] = {}
    for split, own in _PARTS.items():
        for name in own:
            chosen = [file for file in files if file.stem == name or file.stem.startswith((f"{name}-", f"{name}_"))]
            if chosen:
                found[split] = chosen
                break
    return {split: partial(_read, chosen) for split, chosen in (found or {"": files}).items()}


def _read(files: Sequence[Path]) -> EncodedPart:
    parquet = require("pyarrow.parquet", extra="parquet", why="Reading parquet files")
    tables = [_table(parquet, file) for file in files]
    names = tables[0].column_names
    image = next((name for name in _IMAGES if name in names), None)
    label = next((name for name in _LABELS if name in names), None)
    if image is None or label is None:
        raise DataError(f"{files[0]} has a column image and a column label; found {', '.join(names)}.")
    pictures = [_picture(value, files[0]) for table in tables for value in table.column(image).to_pylist()]
    values = [value for table in tables for value in table.column(label).to_pylist()]
    classes = _class_names(tables[0], label)
    if not classes:
        texts = {str(value) for value in values}
        classes = tuple(sorted(texts, key=lambda text: (int(text), text) if text.isdecimal() else (-1, text)))
        values = [classes.index(str(value)) for value in values]
    groups = [value for table in tables for value in table.column("group").to_pylist()] if "group" in names else None
    labels = np.array(values, dtype=np.int64)
    if not len(labels) or labels.min() < 0 or labels.max() >= len(classes):
        raise DataError(f"The labels of {files[0]} are numbers from 0 to {len(classes) - 1}, one for each picture.")
    return EncodedPart(tuple(pictures), labels, classes, None if groups is None else np.array(groups))


def _table(parquet: Any, file: Path) -> Any:
    try:
        return parquet.read_table(file)
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise DataError(f"{file} is not a readable parquet file: {error}.") from error


def _picture(value: Any, file: Path) -> bytes:
    content = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(content, bytes):
        raise DataError(f"The pictures of {file} are not inside it: save the set with their bytes embedded.")
    return content


def _class_names(table: Any, label: str) -> tuple[str, ...]:
    """The names that `datasets` keeps in the metadata of the file."""
    try:
        features = json.loads((table.schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(features[label]["names"])
    except (KeyError, TypeError, ValueError):
        return ()
