"""Doubts about a normalisation: a wrong mean or std breaks nothing, it makes a network less sure and less right."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from robustinfer.errors import ExportError

from .noise import Photographs

__all__ = ["Array", "Numbers", "check_units", "doubt"]

_IMAGES = 16
_CLEAR = 0.1  # how much better another normalisation must do before it is named
_LARGEST_STD = 10.0

Numbers = Sequence[float]
Array = npt.NDArray[np.float32]


def check_units(mean: Numbers, std: Numbers) -> None:
    """Refuse numbers for pixels from 0 to 255, which most pipelines have: here pixels are in [0,1]."""
    if min(std) <= 0:
        raise ExportError(f"std must be positive; found {', '.join(f'{number:g}' for number in std)}.")
    if min(mean) >= 0 and max(mean) <= 1 and max(std) <= _LARGEST_STD:
        return
    shown = [", ".join(f"{number:g}" for number in numbers) for numbers in (mean, std)]
    divided = ["--mean " + ",".join(f"{number / 255:.4g}" for number in mean)]
    divided.append("--std " + ",".join(f"{number / 255:.4g}" for number in std))
    raise ExportError(
        f"Mean and std are those of pixels in [0,1], so a mean is at most 1; found mean {shown[0]} and std {shown[1]}. "
        f"For pixels from 0 to 255 divide both by 255: {' '.join(divided)}."
    )


def doubt(
    scores: Callable[[Numbers, Numbers, Array], Array], images: Photographs, mean: Numbers, std: Numbers
) -> str | None:
    """A sentence if a usual normalisation suits the network clearly better on these photographs; None if not.

    `scores(mean, std, pixels)` is the network behind that normalisation. With labels the accuracy decides, else how
    sure the network is of its top class. On synthetic images neither says anything.
    """
    if images.source == "synthetic":
        return None
    pixels = images.pixels[:_IMAGES] * np.float32(1 / 255)
    labels = None if images.labels is None else images.labels[:_IMAGES]
    usual: dict[str, tuple[Numbers, Numbers]] = {"no normalisation": ((0.0,), (1.0,)), "0.5 and 0.5": ((0.5,), (0.5,))}
    if len(mean) == 3:
        usual["ImageNet's usual ones"] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    own = _merit(scores(mean, std, pixels), labels)
    found = {}
    for words, (other_mean, other_std) in usual.items():
        other = [tuple(numbers) * (len(mean) // len(numbers)) for numbers in (other_mean, other_std)]
        if not np.allclose(other, [mean, std], atol=0.01):
            found[words] = _merit(scores(other[0], other[1], pixels), labels)
    best = max(found, key=lambda words: found[words])
    if found[best] - own < _CLEAR:
        return None
    what = "of the images get their label" if labels is not None else "is what its top class gets on average"
    return (
        f"the normalisation may be wrong: {own:.2f} {what}, and {found[best]:.2f} with {best} as mean and std; check "
        "--mean and --std"
    )


def _merit(scores: Array, labels: npt.NDArray[np.int64] | None) -> float:
    """The accuracy, or the mean probability of the top class."""
    if labels is not None:
        return float((scores.argmax(axis=1) == labels).mean())
    probabilities = bool((scores >= 0).all() and np.allclose(scores.sum(axis=1), 1.0, atol=1e-2))
    return float((scores if probabilities else softmax(scores, axis=1)).max(axis=1).mean())
