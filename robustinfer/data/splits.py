"""Which images are test images where a set does not say, and which are taken where not all are.

Both are fixed rules without chance: the same files give the same parts, for every model and every run.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError

__all__ = ["choose", "first_of_each_class", "groups_of_names", "is_class_by_class", "split_fifth", "split_groups"]

Numbers = npt.NDArray[np.int64]


def split_fifth(count: int, *, test: bool) -> Numbers:
    """The numbers of the test images, every fifth, or of all others: for data sets that come without a split."""
    return np.flatnonzero((np.arange(count) % 5 == 4) == test)


def split_groups(groups: npt.NDArray[Any], *, test: bool) -> Numbers:
    """The numbers of the test images if groups stay whole: every fifth group, in the order in which groups appear."""
    _, first, own = np.unique(groups, return_index=True, return_inverse=True)
    place = np.empty(len(first), dtype=np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    return np.flatnonzero((place[own.reshape(-1)] % 5 == 4) == test)


def groups_of_names(names: Sequence[str], pattern: str) -> npt.NDArray[np.str_]:
    """The group of each file: what the pattern finds in its relative path, in the first parenthesis if it has one."""
    found = []
    for name in names:
        match = re.search(pattern, name)
        if match is None:
            raise DataError(f"The group pattern {pattern!r} finds nothing in {name}: every file needs a group.")
        found.append((match.group(1) if match.re.groups else match.group()) or "")
    return np.array(found)


def is_class_by_class(labels: npt.NDArray[Any]) -> bool:
    """Whether a set lists its classes one after another, as folders do, so that its first images are of one class."""
    return int(np.count_nonzero(np.diff(labels))) == len(np.unique(labels)) - 1


def first_of_each_class(labels: npt.NDArray[Any], limit: int) -> Numbers:
    """The places of `limit` images, equally many of each class as far as they last, in the order of the set.

    A higher limit keeps the images of a lower one.
    """
    rank = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        rank[of_class] = np.arange(len(of_class))
    return np.sort(np.lexsort((np.arange(len(labels)), rank))[:limit])


def choose(
    labels: npt.NDArray[Any], *, every: int = 1, limit: int | None = None, left_out: Sequence[int] = ()
) -> Numbers:
    """The numbers of the images that are taken: every `every`-th but those left out, at most `limit` of them.

    A limit takes the first ones; where the set lists class after class, equally many of each class.
    """
    numbers = np.arange(0, len(labels), every)
    if len(left_out):
        numbers = numbers[~np.isin(numbers, left_out)]
    if limit is None or limit >= len(numbers):
        return numbers
    if is_class_by_class(labels):
        return numbers[first_of_each_class(labels[numbers], limit)]
    return numbers[:limit]
