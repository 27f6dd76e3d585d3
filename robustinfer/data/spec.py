"""How a data set is named: one way for training, evaluation, certification and reports.

A name is a kind, and for most kinds a colon and a place: `digits`, `mnist:DIR`, `folder:PATH`, `npz:FILE`. A bare path
is the folder of the data set that a model was, or is to be, trained on.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError, MissingDataError

__all__ = ["IN_ROOT", "KINDS", "DataSpec", "find_data", "parse_data", "place_data"]

KINDS: dict[str, str] = {
    "digits": "digits",
    "mnist": "mnist:DIR",
    "cifar10": "cifar10:DIR",
    "imagenet": "imagenet:DIR",
    "folder": "folder:PATH",
    "npz": "npz:FILE",
    "csv": "csv:FILE",
    "gtsrb": "gtsrb:DIR",
    "torchvision": "torchvision:NAME[:DIR]",
    "parquet": "parquet:PATH",
}
"""The kinds of data sets, and how each is written."""

IN_ROOT = ("mnist", "cifar10", "imagenet")  # a recipe names them; where they lie is said apart, `data/` by default
_PLACED = ("folder", "npz", "csv", "gtsrb", "torchvision", "parquet")  # nothing without a place
_SINGLE_FILES = ("npz", "csv")  # of which a folder may hold several: the one of this name is meant
_GROUP = "?group="


@dataclass(frozen=True)
class DataSpec:
    """A data set: its kind, where it lies (empty: the default of the kind), and what the images of a group share.

    `group` is a regular expression: images whose relative path gives the same match (its first parenthesis, if there is
    one) stay on the same side of a split.
    """

    kind: str
    path: str = ""
    group: str = ""

    def __str__(self) -> str:
        pattern = f"{_GROUP}{self.group}" if self.group else ""
        return f"{self.kind}:{self.path}{pattern}" if self.path else f"{self.kind}{pattern}"

    @property
    def short(self) -> str:
        """The name without the folders above it, for people and for files that are passed on."""
        name = Path(self.path.partition(":")[0] if self.kind == "torchvision" else self.path).name
        return f"{self.kind}:{name}" if self.kind in _PLACED and name else self.kind

    def resolved(self) -> "DataSpec":
        """The same data set, found from whatever folder a later command is run in."""
        name, colon, place = self.path.partition(":") if self.kind == "torchvision" else ("", "", self.path)
        if not place:
            return self
        return DataSpec(self.kind, f"{name}{colon}{Path(place).expanduser().resolve()}", self.group)


def parse_data(text: str) -> DataSpec:
    """The data set of a name that begins with one of the kinds."""
    kind, colon, rest = text.partition(":")
    path, marked, group = rest.partition(_GROUP)
    if kind not in KINDS or (kind in _PLACED and not path) or (colon and not path) or (marked and not group):
        raise MissingDataError(
            f"A data set is {', '.join(list(KINDS.values())[:-1])} or {KINDS['parquet']}; found {text!r}."
        )
    if kind == "digits" and path:
        raise MissingDataError(f"digits come with scikit-learn, not in a folder: write digits, or folder:{path}.")
    try:
        re.compile(group)
    except re.error as error:
        raise DataError(f"A group is a regular expression; {group!r} is not one: {error}.") from error
    return DataSpec(kind, path, group)


def place_data(text: str | None, trained_on: str, *, download: bool = False) -> tuple[str, str]:
    """The data set that a recipe names, changed by what a person asks for, and the folder that holds such sets.

    mnist, cifar10 and imagenet keep their short names, so that a recipe says what it trains on and not where it lay.
    The folder need not be there yet if they are to be downloaded into it.
    """
    if text is None:
        return trained_on, "data"
    kind = trained_on.partition(":")[0]
    if download and kind in IN_ROOT and text.partition(":")[0] not in KINDS:
        return trained_on, text
    found = find_data(text, trained_on)
    if found.kind in IN_ROOT:
        return found.kind, found.path or "data"
    return str(found.resolved()), "data"


def find_data(text: str, trained_on: str | None) -> DataSpec:
    """The data set a person names: by its kind, or by the folder of the data set that a model is trained on."""
    if text.partition(":")[0] in KINDS:
        return parse_data(text)
    if not Path(text).exists():
        raise MissingDataError(
            f"There is no folder {text!r}; a data set is {', '.join(KINDS.values())}, or the folder of the one that "
            "the model is trained on."
        )
    kind = (trained_on or "").partition(":")[0]
    if kind not in KINDS:
        raise DataError(
            f"The model does not say which data set {text} should hold: write folder:{text} or mnist:{text}."
        )
    if kind == "digits":
        raise MissingDataError(
            f"The model is trained on digits, which are not in a folder: write folder:{text} for those in {text}."
        )
    if kind == "torchvision":
        name = str(trained_on).split(":")[1]
        return DataSpec(kind, f"{name}:{text}")
    if kind in _SINGLE_FILES and Path(text).is_dir():
        return DataSpec(kind, str(Path(text) / Path(parse_data(str(trained_on)).path).name))
    return DataSpec(kind, text)
