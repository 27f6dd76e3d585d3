"""Attacked images: changes that fool an ordinary network, shorter than the radius that a certificate promises.

They are kept in an .npz file without pickled objects, so that a report can be made again from files alone.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import DataError
from .files import replacing

__all__ = ["Attacked", "AttackedImage", "read_attacked", "save_attacked"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class AttackedImage:
    """One image of a data set, and a changed one that an ordinary network takes for something else.

    `distance` is the l2 norm of the change in pixel units, `fooled` what the ordinary network says of the changed
    image, `radius` what the certificate of the original promises, `answered` what the certified model says of the
    changed image (None for an abstention).
    """

    index: int
    truth: int
    fooled: int
    answered: int | None
    distance: float
    radius: float
    original: Array
    changed: Array


@dataclass(frozen=True)
class Attacked:
    """What attacking an ordinary network found on the certified images.

    Of `images` images, the ordinary network labels `clean` correctly, and `robust` still do after an attack with
    changes up to `delta`; the certified model proves its correct label at that distance for `certified` of them.
    `fooled` counts images whose ordinary label was changed within the radius that the certificate proves.
    """

    ordinary: str
    delta: float
    steps: int
    images: int
    clean: int
    robust: int
    certified: int
    fooled: int
    examples: tuple[AttackedImage, ...] = ()

    def facts(self) -> dict[str, Any]:
        """Everything but the pixels, as a JSON object."""
        document = dataclasses.asdict(dataclasses.replace(self, examples=()))
        document["examples"] = [
            {name: value for name, value in vars(example).items() if name not in ("original", "changed")}
            for example in self.examples
        ]
        return document


def save_attacked(path: Path, attacked: Attacked) -> None:
    """Write the file."""
    arrays = {
        f"{kind}_{number}": getattr(example, kind)
        for number, example in enumerate(attacked.examples)
        for kind in ("original", "changed")
    }
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, facts=np.array(json.dumps(attacked.facts())), **arrays)


def read_attacked(path: Path) -> Attacked:
    """Read the file."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            facts = json.loads(str(arrays["facts"]))
            examples = tuple(
                AttackedImage(**example, original=arrays[f"original_{number}"], changed=arrays[f"changed_{number}"])
                for number, example in enumerate(facts.pop("examples"))
            )
        return Attacked(**facts, examples=examples)
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise DataError(f"{path} is not a file of attacked images from `robust quickstart`: {error}.") from error
