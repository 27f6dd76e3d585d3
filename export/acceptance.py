"""Acceptance: an exported file is opened as a user would open it, and compared with the ensemble it came from.

Scores are compared on clean and noisy images, and votes on replayed noise. With d flips among n noisy samples, the
probability that file and ensemble disagree on a sample (averaged over these images) is at most
zeta = CP_upper(d, n, alpha), except with probability alpha over the noise. Where members vote, a sample flips if that
of any member does: they all see the same noise, so a sample is one observation, however many vote on it. So a bound
p_lower that was proven for the ensemble, or for a member, holds for the file as p_lower - zeta (Ugare et al., arXiv
2305.19521); the runtime certifies the file itself and needs no such step.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from robustinfer import Predictor
from robustinfer.card import Card, InputSpec
from robustinfer.engines import check_rows
from robustinfer.errors import BatchError, ExportError, ModelError, RobustinferError
from robustinfer.images import in_batches
from robustinfer.smoothing.bounds import clopper_pearson_lower, clopper_pearson_upper
from robustinfer.smoothing.domains import noise_name
from robustinfer.smoothing.noise import add_noise

from .cascade import CascadeReference
from .fusion import EnsembleLike
from .sampler.check import check_sampler

__all__ = ["NOISE_SEED", "TOLERANCE", "HeldOut", "Images", "Parity", "accept", "noisy_copies", "synthetic_images"]

TOLERANCE = 1e-4
"""Largest score difference that is accepted, relative to the largest score."""

NOISE_SEED = 7707239139885325089
"""The seed of the noise of every export: whatever is fitted, calibrated, measured or accepted on noise sees this one.

It is always the same, so that two exports of a run say the same, and it was drawn once, from all numbers of 63 bits, so
that nobody chooses it to certify with. Noise does not depend on the image: a certificate with this seed would count
votes on noise to which the rule of a cascade, betas or the ranges of integers were fitted, and its samples would not be
independent of the classifier.
"""

_ALPHA = 0.001
_SIGMA = 0.25  # for a model that was not trained for noise
_FLIPS = 0.01  # share of votes that may flip: a larger one, once proven, would take the worth out of certificates
_UNDECIDED = 0.05  # share of samples that may be left out of the comparison of a cascade
_BATCH = 64
_ROWS = 4  # images that are scored alone and beside others


@dataclass(frozen=True)
class Images:
    """Images to compare on, uint8 (N, C, H, W), and what they are."""

    source: str
    pixels: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class HeldOut(Images):
    """Images that nothing was trained on, with their labels: betas are fitted on them, accuracies measured."""

    labels: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Parity:
    """How far the file is from the ensemble. Differences are rounded up to one digit, so that they do not depend on
    how many threads computed them; `relative_difference` is relative to the largest score."""

    engine: str
    torch: str
    images: str
    clean: int
    clean_flips: int
    samples: int
    noise: str
    sigma: float
    seed: int
    score_difference: float
    relative_difference: float
    flips: int
    alpha: float
    zeta: float

    def to_json(self) -> dict[str, Any]:
        """The figures as they stand in the card."""
        return dataclasses.asdict(self)


def synthetic_images(spec: InputSpec, count: int = 8) -> Images:
    """Images for a run whose data is not available: black, white, ramps and random pixels, always the same ones."""
    generator = np.random.Generator(np.random.Philox(key=0))
    images = generator.integers(0, 256, (count, *spec.shape), dtype=np.uint8)
    images[0], images[1 % count] = 0, 255
    ramp = np.linspace(0, 255, spec.width).astype(np.uint8)
    for index in range(2, count, 2):
        images[index] = np.roll(ramp, index, axis=0)
    return Images("synthetic", images)


def accept(
    path: Path,
    ensemble: EnsembleLike,
    card: Card,
    *,
    images: Images,
    samples: int = 1000,
    tolerance: float = TOLERANCE,
    flips: float = _FLIPS,
    progress: Callable[[float], None] = lambda _: None,
) -> Parity:
    """Compare a file with its ensemble; an ExportError says where they differ by more than the tolerance.

    `flips` is the share of votes on noise that may differ.
    """
    try:
        predictor = Predictor.load(path, device="cpu")
        check_rows(predictor.engine, card.input.shape, images=images.pixels[:_ROWS] * np.float32(1 / 255))
    except BatchError as error:
        raise ExportError(f"The exported file could not be certified: {error} No file was kept.") from error
    except ModelError as error:
        raise ExportError(f"The exported file cannot be opened again: {error}") from error
    comparison = _Comparison(predictor, card, tolerance)
    with torch.inference_mode():
        clean = images.pixels * np.float32(1 / 255)
        for first, batch in in_batches(clean, _BATCH):
            comparison.add(batch, *_reference(ensemble, card, batch, tolerance), "image", first)
        clean_flips = comparison.flips
        comparison.votes = comparison.flips = 0  # votes are compared on noise
        for image, first, noisy in noisy_copies(images, card.sigma or _SIGMA, samples):
            expected = _reference(ensemble, card, noisy, tolerance)
            comparison.add(noisy, *expected, f"image {image} under noise sample", first)
            progress(len(noisy))
    comparison.judge(images.source, flips)
    if card.sampler:
        check_sampler(path, card, predictor, images.pixels[:1], seed=NOISE_SEED, tolerance=tolerance)
    return Parity(
        engine=predictor.engine.name,
        torch=str(torch.__version__),
        images=images.source,
        clean=len(images.pixels),
        clean_flips=clean_flips,
        samples=comparison.votes,
        noise=noise_name("8-bit"),
        sigma=card.sigma or _SIGMA,
        seed=NOISE_SEED,
        score_difference=_round_up(comparison.difference),
        relative_difference=_round_up(comparison.difference / comparison.largest) if comparison.largest else 0.0,
        flips=comparison.flips,
        alpha=_ALPHA,
        zeta=_round_up(float(clopper_pearson_upper(comparison.flips, comparison.votes, _ALPHA)), digits=4),
    )


def noisy_copies(images: Images, sigma: float, samples: int) -> Iterator[tuple[int, int, npt.NDArray[np.float32]]]:
    """Noisy copies in batches, about as many of each image, with the number of the image and of the first sample."""
    count = len(images.pixels)
    for index, image in enumerate(images.pixels):
        share = samples // count + (index < samples % count)
        for first in range(0, share, _BATCH):
            noisy = np.empty((min(_BATCH, share - first), *image.shape), dtype=np.float32)
            # The images share no noise: sample numbers continue from one to the next.
            start = index * samples + first
            add_noise(image, noise=noise_name("8-bit"), sigma=sigma, seed=NOISE_SEED, first=start, out=noisy)
            yield index, first, noisy


def _reference(
    ensemble: EnsembleLike, card: Card, batch: npt.NDArray[np.float32], tolerance: float
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """The ensemble's scores, (N, K), or those of each member, (N, members, K), if the members of the file vote; and the
    samples that are not compared: those which rounding sends one way or the other through a cascade."""
    image = torch.from_numpy(batch)
    if card.kind == "votes":
        scores = torch.stack([member(image) for member in ensemble.members], dim=1)
    else:
        scores = ensemble(image)
    array: npt.NDArray[np.float32] = scores.float().cpu().numpy()
    if isinstance(ensemble, CascadeReference) and math.isfinite(tolerance):
        return array, ensemble.undecided(image, tolerance)
    return array, np.zeros(len(batch), np.bool_)


class _Comparison:
    """Differences and flips, added up over batches."""

    def __init__(self, predictor: Predictor, card: Card, tolerance: float) -> None:
        self.predictor, self.card, self.tolerance = predictor, card, tolerance
        self.difference = self.largest = 0.0
        self.votes = self.flips = self.compared = self.undecided = 0
        self.where = ""

    def add(
        self,
        batch: npt.NDArray[np.float32],
        expected: npt.NDArray[np.float32],
        undecided: npt.NDArray[np.bool_],
        place: str,
        first: int,
    ) -> None:
        try:
            found = self.predictor.engine.scores(batch)
        except RobustinferError as error:
            raise ExportError(f"The exported file does not run: {error}") from error
        classes = len(self.card.classes)
        members = (len(self.card.members),) if self.card.kind == "votes" else ()
        if expected.shape != (len(batch), *members, classes) or found.shape != expected.shape:
            raise ExportError(
                f"Expected {classes} scores per image, one for each class; the ensemble gives {expected.shape[1:]} "
                f"and the file {found.shape[1:]}: classes and outputs do not match."
            )
        if not np.isfinite(expected).all():
            raise ExportError(f"The ensemble's scores are not finite ({place} {first} and the following).")
        gap = np.abs(found - expected)
        gap[~np.isfinite(gap)] = np.inf
        gap[undecided] = 0.0
        worst = float(gap.max(initial=0.0))
        if worst > self.difference or not self.where:
            worst_at = np.unravel_index(int(gap.argmax()), gap.shape)
            self.where = (
                f"{place} {first + int(worst_at[0])}, class {self.card.classes[int(worst_at[-1])]!r}: "
                f"{expected[worst_at]:.6g} by torch, {found[worst_at]:.6g} by {self.predictor.engine.name}"
            )
            self.difference = worst
        self.largest = max(self.largest, float(np.abs(expected).max(initial=0.0)))
        self.compared += len(batch)
        self.undecided += int(undecided.sum())
        changed = found.argmax(-1) != expected.argmax(-1)
        if changed.ndim > 1:  # members see the same noise, so theirs is one observation: it flips if any of them does
            changed = changed.any(axis=1)
        self.votes += changed.size
        self.flips += int(changed.sum())

    def judge(self, source: str, flips: float) -> None:
        if self.undecided > _UNDECIDED * self.compared:
            raise ExportError(
                f"Rounding decides for {self.undecided} of {self.compared} samples when they leave the cascade, more "
                f"than {_UNDECIDED:.0%}: its thresholds fall among the margins. Ask for another agreement, or leave "
                "--cascade out; no file was kept."
            )
        if self.difference > self.tolerance * self.largest:
            raise ExportError(
                f"The exported file differs from the ensemble by {self.difference:.2g}, more than {self.tolerance:g} "
                f"of the largest score {self.largest:.3g} ({source} {self.where}); no file was kept."
            )
        if clopper_pearson_lower(self.flips, self.votes, _ALPHA) > flips:
            raise ExportError(
                f"{self.flips} of {self.votes} votes on noise differ between the exported file and the ensemble, "
                f"clearly more than {flips:.0%}: classes are too close to ties, or scores too large, for its "
                "precision; no file was kept."
            )


def _round_up(value: float, digits: int = 1) -> float:
    """The value, rounded up to this number of significant digits."""
    if value == 0.0 or not math.isfinite(value):
        return value
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return float(f"{math.ceil(value / step * (1 - 1e-12)) * step:.{digits}g}")
