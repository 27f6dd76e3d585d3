"""The gallery of a report: certified images, the noisy view the model votes on, and changes that fool other networks.

Pictures are PNG in data URIs, at the resolution of the model; the page enlarges them without smoothing.
"""

import base64
import html
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..attacked import Attacked, AttackedImage
from ..certificate import Certificate
from ..certificate_file import Entry
from ..images import to_unit
from ..smoothing.bounds import format_radius
from ..smoothing.noise import add_noise
from .material import Material

__all__ = ["attacked_section", "certified_section", "picture"]

Array = npt.NDArray[Any]
_CERTIFIED, _ATTACKED = 12, 6


def certified_section(material: Material) -> str:
    """Images at evenly spaced ranks of certified radius, the failures among them, each beside its noisy view."""
    if material.read is None:
        return ""
    tiles = "".join(_tile(material, entry) for entry in _spread(material.sets[0].entries, _CERTIFIED))
    return (
        "<section><h2>Certified images</h2><p>Test images from the largest certified radius to none, evenly spaced, "
        "failures included. Beside each image is the first noisy view its certificate was voted on (clipped for the "
        f'screen only).</p><div class="gallery">{tiles}</div></section>'
    )


def attacked_section(material: Material) -> str:
    """Changes that fool an ordinary network and are shorter than the certified radius."""
    attacked = material.attacked
    if attacked is None or not attacked.examples:
        return ""
    names = material.classes or tuple(str(label) for label in range(1000))
    tiles = "".join(_attacked_tile(example, names) for example in attacked.examples[:_ATTACKED])
    return (
        f"<section><h2>What fools an ordinary network</h2><p>{_attacked_words(attacked)}</p>"
        f'<div class="gallery wide">{tiles}</div></section>'
    )


def _attacked_words(attacked: Attacked) -> str:
    share = f"{attacked.certified} of the {attacked.images} images"
    return (
        f"The same architecture, trained without attacks and without noise, labels {attacked.clean} of "
        f"{attacked.images} test images correctly. An attack of {attacked.steps} gradient steps with changes of l2 "
        f"length up to {attacked.delta:g} leaves it {attacked.robust}: that counts what one attack did not find, and "
        f"proves nothing. The certified model proves its correct label at that length for {share}, whatever the "
        f"attack. For {attacked.fooled} images the ordinary network was fooled by a change shorter than the certified "
        "radius of that image; the shortest such changes are shown, and beside them the change, five times enlarged."
    )


def _spread(entries: Sequence[Entry], count: int) -> list[Entry]:
    """Entries at evenly spaced ranks, from the largest correct radius down to wrong labels and abstentions."""
    ranked = sorted(entries, key=lambda entry: (entry.correct_radius, entry.correct), reverse=True)
    if len(ranked) <= count:
        return ranked
    return [ranked[round(position)] for position in np.linspace(0, len(ranked) - 1, count)]


def _tile(material: Material, entry: Entry) -> str:
    assert material.read is not None
    certificate, image = entry.certificate, material.read(entry.index)
    truth = _name(material, entry.truth)
    if certificate.abstained:
        verdict, words = "abstained", "abstains"
    elif entry.correct:
        verdict, words = (
            "correct",
            f"{html.escape(str(certificate.class_name))}, radius {format_radius(certificate.radius)}",
        )
    else:
        verdict, words = "wrong", f"{html.escape(str(certificate.class_name))}, wrong"
    return (
        f'<figure class="{verdict}"><div class="pair">{picture(image, f"test image {entry.index}, a {truth}")}'
        f"{picture(_noisy(image, certificate), 'the same image with noise')}</div>"
        f"<figcaption><b>{words}</b><br>image {entry.index}, truth {html.escape(truth)}</figcaption></figure>"
    )


def _attacked_tile(example: AttackedImage, names: Sequence[str]) -> str:
    change = 0.5 + 5 * (to_unit(example.changed) - to_unit(example.original))
    answered = "abstains" if example.answered is None else f"says {html.escape(names[example.answered])}"
    return (
        f'<figure class="correct"><div class="pair">{picture(example.original, f"image {example.index}")}'
        f"{picture(example.changed, 'the changed image')}{picture(change, 'the change')}</div><figcaption>"
        f"ordinary network: <b>{html.escape(names[example.truth])}</b> becomes <b>{html.escape(names[example.fooled])}"
        f"</b><br>this model {answered}<br>length {example.distance:.3f}, certified to {format_radius(example.radius)}"
        "</figcaption></figure>"
    )


def _noisy(image: Array, certificate: Certificate) -> Array:
    """Sample n0, the first that counted: drawn again from the seed of the certificate."""
    kind = certificate.noise.rpartition("/")[2]
    out = np.empty((1, *image.shape), dtype=np.float32)
    pixels = image if kind == "integer" else to_unit(image)
    add_noise(
        pixels,
        kind="integer" if kind == "integer" else "continuous",
        sigma=certificate.sigma,
        seed=certificate.seed,
        first=certificate.n0,
        out=out,
    )
    sample: Array = out[0]
    return sample


def picture(image: Array, alternative: str) -> str:
    """An image (C, H, W), uint8 or in [0,1], as an <img> of its own size."""
    from PIL import Image

    pixels = image if image.dtype == np.uint8 else np.round(np.clip(image, 0, 1) * 255).astype(np.uint8)
    channels, height, width = pixels.shape
    plain = pixels[0] if channels == 1 else np.moveaxis(pixels[:3], 0, 2)
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(plain)).save(stream, format="PNG", optimize=True)
    source = "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
    return f'<img class="pixels" src="{source}" width="{width}" height="{height}" alt="{html.escape(alternative)}">'


def _name(material: Material, label: int) -> str:
    return material.classes[label] if label < len(material.classes) else str(label)
