"""Data sets of picture files: one folder per class, a table of paths and labels, GTSRB as torchvision lays it out."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path

from ..errors import DataError, MissingDataError
from ..images import IMAGE_SUFFIXES, PICTURE_SUFFIXES
from .splits import split_fifth

__all__ = [
    "Listing",
    "class_folders",
    "csv_listings",
    "folder_listings",
    "gtsrb_listings",
    "imagenet_folder",
    "pictures_in",
]

_TESTS = ("test", "val", "valid", "validation")
_COLUMNS = {
    "path": ("path", "file", "filename", "image"),
    "label": ("label", "class", "target", "classid"),
    "split": ("split",),
    "group": ("group",),
}


@dataclass(frozen=True)
class Listing:
    """The files of one part of a set, their labels, the names of the classes, and the groups of the files, if any."""

    root: Path
    files: Sequence[Path]
    labels: Sequence[int]
    classes: Sequence[str]
    groups: Sequence[str] | None = None


Listings = Mapping[str, Callable[[], Listing]]
"""The parts of a set, `train` and `test`, listed when they are asked for; "" is a set without parts."""


def imagenet_folder(root: str | PathLike[str]) -> Path:
    """The folder with ImageNet's train and val: ROOT/imagenet, or ROOT itself."""
    inside = Path(root) / "imagenet"
    return inside if inside.is_dir() else Path(root)


def class_folders(path: Path, split: str) -> tuple[list[Path], list[int], list[str]]:
    """Files, labels and class names of PATH/train or PATH/test (or PATH/val); without them, a fifth of PATH is test."""
    listings = folder_listings(path)
    if "" not in listings:
        if split not in listings:
            raise DataError(f"The folder {path} has a train or test part, but no {split} part.")
        found = listings[split]()
        return list(found.files), list(found.labels), list(found.classes)
    whole = listings[""]()
    chosen = split_fifth(len(whole.files), test=split == "test")
    return [whole.files[i] for i in chosen], [whole.labels[i] for i in chosen], list(whole.classes)


def folder_listings(path: Path) -> Listings:
    """The parts of a folder: train, and test or val, each with one sub-folder per class; or the classes themselves."""
    if not path.is_dir():
        raise MissingDataError(f"There is no folder {path}: give a folder with one sub-folder per class.")
    test = next((path / name for name in _TESTS if (path / name).is_dir()), None)
    parts = {"train": path / "train" if (path / "train").is_dir() else None, "test": test}
    found = {split: partial(_classes, path, part) for split, part in parts.items() if part is not None}
    return found or {"": partial(_classes, path, path)}


def _classes(path: Path, root: Path) -> Listing:
    classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if len(classes) < 2:
        raise DataError(
            f"The folder {root} needs one sub-folder for each of at least two classes; pictures without labels are "
            f"certified with: robust certify MODEL {root}"
        )
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = _pictures(root / name, PICTURE_SUFFIXES)
        if not found:
            raise DataError(f"The class folder {root / name} holds no images; fill it or remove it.")
        files += found
        labels += [label] * len(found)
    return Listing(path, files, labels, classes)


def pictures_in(folder: Path) -> list[Path]:
    """All image files of a folder and its sub-folders, in the order of their names."""
    found = _pictures(folder, IMAGE_SUFFIXES)
    if not found:
        raise MissingDataError(f"The folder {folder} holds no images ({', '.join(IMAGE_SUFFIXES)}).")
    return found


def _pictures(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in suffixes and not file.name.startswith(".") and file.is_file()
    )


def csv_listings(path: Path) -> Listings:
    """The parts of a table of pictures: columns path and label, and where they are, split (train, test) and group.

    Paths are relative to the table's folder.
    """
    rows = list(_rows(path))
    classes = _ordered({row["label"] for row in rows})
    if len(classes) < 2:
        raise DataError(f"{path} needs labels of at least two classes, found {len(classes)}.")
    parts: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        split = row.get("split", "").lower()
        parts.setdefault("test" if split in _TESTS and split != "test" else split, []).append(row)
    if set(parts) > {""} or not set(parts) <= {"", "train", "test"}:
        raise DataError(f"The column split of {path} holds train or test in every row, found {', '.join(parts)!r}.")
    return {split: partial(_listing, path.parent, part, classes) for split, part in parts.items()}


def _listing(root: Path, rows: Sequence[dict[str, str]], classes: Sequence[str]) -> Listing:
    files = [root / row["path"] for row in rows]
    number = {name: label for label, name in enumerate(classes)}
    groups = [row["group"] for row in rows] if "group" in rows[0] else None
    return Listing(root, files, [number[row["label"]] for row in rows], classes, groups)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a table, by our names of the columns."""
    if not path.is_file():
        raise MissingDataError(f"There is no file {path}.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a readable text file: {error}.") from error
    lines = text.splitlines()
    first = lines[0] if lines else ""
    delimiter = max(",;\t", key=first.count)
    header = [name.strip().lower() for name in next(csv.reader([first], delimiter=delimiter), [])]
    columns = {own: header.index(name) for own, names in _COLUMNS.items() for name in names[::-1] if name in header}
    if not {"path", "label"} <= set(columns):
        raise DataError(f"{path} begins with a line that names the columns path and label; found {first[:80]!r}.")
    for number, row in enumerate(csv.reader(lines[1:], delimiter=delimiter), start=2):
        if not row:
            continue
        if len(row) < len(header) or not row[columns["path"]] or not row[columns["label"]]:
            raise DataError(f"Line {number} of {path} has {len(row)} of {len(header)} fields, or no path or label.")
        yield {own: row[place].strip() for own, place in columns.items()}


def _ordered(names: set[str]) -> list[str]:
    """Class names in order: numbers as numbers."""
    return sorted(names, key=lambda name: (int(name), name)) if all(map(str.isdecimal, names)) else sorted(names)


def gtsrb_listings(path: Path) -> Listings:
    """GTSRB as torchvision unpacks it: DIR/gtsrb/GTSRB/Training/00000/*.ppm and Final_Test/Images with its table.

    A file of the training part is named by its track and its place in the track; a track is a group.
    """
    places = (path / "gtsrb" / "GTSRB", path / "GTSRB", path)
    root = next((place for place in places if (place / "Training").is_dir()), None)
    if root is None:
        raise MissingDataError(
            f"There is no gtsrb/GTSRB/Training in {path}: give the folder torchvision downloads into."
        )
    table = next(
        (file for place in (path / "gtsrb", path, root) for file in [place / "GT-final_test.csv"] if file.is_file()),
        None,
    )
    parts: dict[str, Callable[[], Listing]] = {"train": partial(_gtsrb_training, root)}
    if table is not None and (root / "Final_Test" / "Images").is_dir():
        parts["test"] = partial(_gtsrb_test, root, table)
    return parts


def _gtsrb_training(root: Path) -> Listing:
    found = _classes(root, root / "Training")
    groups = [f"{file.parent.name}/{file.stem.partition('_')[0]}" for file in found.files]
    return Listing(root, found.files, found.labels, [_plain(name) for name in found.classes], groups)


def _gtsrb_test(root: Path, table: Path) -> Listing:
    classes = [_plain(name) for name in _classes(root, root / "Training").classes]
    rows = list(_rows(table))
    unknown = {_plain(row["label"]) for row in rows} - set(classes)
    if unknown:
        raise DataError(f"{table} has the class {sorted(unknown)[0]}, which is not in {root / 'Training'}.")
    files = [root / "Final_Test" / "Images" / row["path"] for row in rows]
    return Listing(root, files, [classes.index(_plain(row["label"])) for row in rows], classes)


def _plain(name: str) -> str:
    return str(int(name)) if name.isdecimal() else name
