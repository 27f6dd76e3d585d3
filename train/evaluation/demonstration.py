"""A demonstration for reports: an ordinary network is attacked on images whose labels another model has certified."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from robustinfer import Predictor
from robustinfer.attacked import Attacked, AttackedImage
from robustinfer.certificate_file import Entry

from ..attacks.balls import ball
from ..attacks.pgd import pgd
from ..machine.randomness import Draws
from ..runs.run import Run

__all__ = ["attack_ordinary"]

_LENGTHS = 8  # changes of so many lengths are tried, the longest of which is delta


def attack_ordinary(
    run: Run,
    predictor: Predictor,
    entries: Sequence[Entry],
    read: Callable[[int], npt.NDArray[np.uint8]],
    *,
    delta: float,
    steps: int = 20,
    examples: int = 6,
    samples: int = 1000,
    seed: int = 0,
) -> Attacked:
    """Attack the network of `run` in l2 balls up to `delta` around the certified images.

    A changed image is rounded to whole grey levels before it counts, so it can be stored and shown. The examples are
    the shortest changes that alter a correct ordinary label and lie within the radius that the image's certificate
    proves, one of each class before a second of any; `predictor`, the certified model, is asked about each of them.
    """
    network = run.ensemble()
    original = torch.from_numpy(np.stack([read(entry.index) for entry in entries]))
    truth = torch.tensor([entry.truth for entry in entries])
    clean = _labels(network, original) == truth
    radii = np.array([entry.correct_radius for entry in entries])
    shortest: dict[int, tuple[float, int, Tensor]] = {}
    for number in range(1, _LENGTHS + 1):
        changed = _attacked(network, original, truth, delta * number / _LENGTHS, steps, (seed, number))
        distance = torch.linalg.vector_norm((changed.double() - original.double()).flatten(1), dim=1) / 255
        found = _labels(network, changed)
        for row in torch.nonzero(clean & (found != truth) & (distance <= delta)).flatten().tolist():
            length = float(distance[row])
            if row not in shortest or length < shortest[row][0]:
                shortest[row] = (length, int(found[row]), changed[row])
    within = sorted((length, row) for row, (length, _, _) in shortest.items() if length < radii[row])
    return Attacked(
        ordinary=run.recipe.name,
        delta=delta,
        steps=steps,
        images=len(entries),
        clean=int(clean.sum()),
        robust=int(clean.sum()) - len(shortest),
        certified=sum(entry.correct and entry.certificate.radius >= delta for entry in entries),
        fooled=len(within),
        examples=tuple(
            _example(entries[row], original[row], shortest[row], predictor, samples)
            for row in _varied(within, truth)[:examples]
        ),
    )


def _varied(within: Sequence[tuple[float, int]], truth: Tensor) -> list[int]:
    """The rows in the order of their lengths, but the first of each class before all others."""
    first = {int(truth[row]): row for _, row in reversed(within)}
    return sorted((row for _, row in within), key=lambda row: first[int(truth[row])] != row)


def _attacked(
    network: nn.Module, original: Tensor, truth: Tensor, length: float, steps: int, key: tuple[int, ...]
) -> Tensor:
    """The attacked images in whole grey levels."""
    image = original.float() / 255

    def loss(x: Tensor) -> Tensor:
        return functional.cross_entropy(network(x), truth, reduction="none")

    x = pgd(loss, image, ball=ball("l2", length), steps=steps, step=2.5 * length / steps, draws=Draws(*key))
    return torch.round(x * 255).to(torch.uint8)


def _labels(network: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = network(images.float() / 255).argmax(dim=1)
    return found


def _example(
    entry: Entry, original: Tensor, found: tuple[float, int, Tensor], predictor: Predictor, samples: int
) -> AttackedImage:
    length, fooled, changed = found
    pixels = changed.numpy()
    return AttackedImage(
        index=entry.index,
        truth=entry.truth,
        fooled=fooled,
        answered=predictor.predict(pixels, n=samples).label,
        distance=length,
        radius=entry.certificate.radius,
        original=original.numpy(),
        changed=pixels,
    )
