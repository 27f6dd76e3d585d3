"""The gallery of a report: certified images, the noisy view the model votes on, and changes that fool other networks.

Pictures are PNG in data URIs, at the resolution of the model; the page enlarges them without smoothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..attacked import AttackedImage
from ..certificate import Certificate
from ..certificate_file import Entry
from ..images import to_unit
from ..pictures import data_uri
from ..smoothing.bounds import format_radius
from ..smoothing.noise import add_noise
from .material import Material

__all__ = ["Picture", "attacked_tiles", "certified_tiles", "picture"]

Array = npt.NDArray[Any]
_CERTIFIED, _ATTACKED = 12, 6


@dataclass(frozen=True)
class Picture:
    """An image of the page: its data URI, its size in pixels, and the words for whoever cannot see it."""

    source: str
    width: int
    height: int
    words: str


def certified_tiles(material: Material) -> list[dict[str, Any]]:
    """Images at evenly spaced ranks of certified radius, the failures among them, each beside its noisy view."""
    if material.read is None:
        return []
    return [_certified_tile(material, entry) for entry in _spread(material.sets[0].entries, _CERTIFIED)]


def attacked_tiles(material: Material) -> list[dict[str, Any]]:
    """Changes that fool an ordinary network and are shorter than the certified radius."""
    if material.attacked is None:
        return []
    names = material.classes or tuple(str(label) for label in range(1000))
    return [_attacked_tile(example, names) for example in material.attacked.examples[:_ATTACKED]]


def _spread(entries: Sequence[Entry], count: int) -> list[Entry]:
    """Entries at evenly spaced ranks, from the largest correct radius down to wrong labels and abstentions."""
    ranked = sorted(entries, key=lambda entry: (entry.correct_radius, entry.correct), reverse=True)
    if len(ranked) <= count:
        return ranked
    return [ranked[round(position)] for position in np.linspace(0, len(ranked) - 1, count)]


def _certified_tile(material: Material, entry: Entry) -> dict[str, Any]:
    assert material.read is not None
    certificate, image = entry.certificate, material.read(entry.index)
    truth = _name(material, entry.truth)
    if certificate.abstained:
        verdict, answer = "abstained", "abstains"
    elif entry.correct:
        verdict, answer = "correct", f"{certificate.class_name}, radius {format_radius(certificate.radius)}"
    else:
        verdict, answer = "wrong", f"{certificate.class_name}, wrong"
    return {
        "verdict": verdict,
        "answer": answer,
        "index": entry.index,
        "truth": truth,
        "pictures": [
            picture(image, f"test image {entry.index}, truth {truth}"),
            picture(_noisy(image, certificate), "the same image with noise"),
        ],
    }


def _attacked_tile(example: AttackedImage, names: Sequence[str]) -> dict[str, Any]:
    change = 0.5 + 5 * (to_unit(example.changed) - to_unit(example.original))
    return {
        "truth": names[example.truth],
        "fooled": names[example.fooled],
        "answer": "abstains" if example.answered is None else f"says {names[example.answered]}",
        "distance": f"{example.distance:.3f}",
        "radius": format_radius(example.radius),
        "pictures": [
            picture(example.original, f"image {example.index}"),
            picture(example.changed, "the changed image"),
            picture(change, "the change"),
        ],
    }


def _noisy(image: Array, certificate: Certificate) -> Array:
    """Sample n0, the first that counted: drawn again from the seed of the certificate."""
    out = np.empty((1, *image.shape), dtype=np.float32)
    pixels = to_unit(image) if certificate.domain == "continuous" else image
    add_noise(
        pixels,
        noise=certificate.drawn_noise,
        sigma=certificate.sigma,
        seed=certificate.seed,
        first=certificate.n0,
        out=out,
    )
    sample: Array = out[0]
    return sample


def picture(image: Array, words: str) -> Picture:
    """An image (C, H, W), uint8 or in [0,1], at its own size."""
    _, height, width = image.shape
    return Picture(data_uri(image), width, height, words)


def _name(material: Material, label: int) -> str:
    return material.classes[label] if label < len(material.classes) else str(label)
