"""Betas of given members, fitted on held-out images: a convex problem in as many numbers as there are members.

For fixed members the cross-entropy of sum_t beta_t f_t is convex in beta, because scores are linear in it. With a sigma
it is the mean cross-entropy over noisy copies, since noisy images are what the members will vote on. Betas are at least
0: a member that is worth nothing is left out, not turned round.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax

from robustinfer import Predictor
from robustinfer.card import Card
from robustinfer.data import choose_readable, load_images, parse_data
from robustinfer.errors import ExportError
from robustinfer.images import in_batches

from ..acceptance import HeldOut, noisy_copies

__all__ = ["Fit", "Scored", "fit_betas", "minimise_loss", "read_held_out"]

_COPIES = 4  # noisy copies of each image
_RIDGE = 1e-4  # keeps members with equal scores from trading arbitrarily large betas
_VANISHED = 1e-3  # share of the scores' spread below which a member is left out
_FEWEST = 20
_BATCH = 64

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """Loss and accuracy of something on images that its betas were not fitted on."""

    what: str
    loss: float
    accuracy: float


@dataclass(frozen=True)
class Fit:
    """Fitted betas, and how they do on images that were held back from the fit, beside plain averages and each member.

    `fitted` and `judged` are numbers of images. With a `sigma` all figures are of noisy copies.
    """

    betas: tuple[float, ...]
    images: str
    fitted: int
    judged: int
    sigma: float | None
    scored: tuple[Scored, ...]

    def to_json(self) -> dict[str, Any]:
        """The figures as they stand in the card."""
        scored = [dataclasses.asdict(row) for row in self.scored]
        return dataclasses.asdict(self) | {"betas": list(self.betas), "scored": scored}


def read_held_out(spec: str, card: Card, *, split: str = "auto", limit: int = 1000) -> HeldOut:
    """Up to `limit` images of a data set with their labels, evenly over its classes."""
    data = load_images(spec, card, split=split)
    numbers, _ = choose_readable(data, limit=limit)
    if len(numbers) < _FEWEST:
        raise ExportError(f"Betas are fitted on at least {_FEWEST} images; {spec} has {len(numbers)}.")
    pixels = [data.read(int(number)) for number in numbers]
    whole = np.stack([image if image.dtype == np.uint8 else np.rint(image * 255).astype(np.uint8) for image in pixels])
    if whole.shape[1:] != card.input.shape:
        whole = whole.reshape(len(whole), *card.input.shape)
    # The card names the set without the folders above it, which are the user's own.
    return HeldOut(f"{parse_data(spec).short}, {data.split}", whole, data.labels[numbers])


def fit_betas(
    predictors: Sequence[Predictor],
    images: HeldOut,
    card: Card,
    *,
    names: Sequence[str],
    progress: Callable[[float], None] = lambda _: None,
) -> Fit:
    """Betas fitted on every other image, and judged on those between."""
    scores, owners = _member_scores(predictors, images, card.sigma, progress)
    labels, judged = images.labels[owners], owners % 2 == 1
    betas = minimise_loss(scores[:, ~judged], labels[~judged])
    spreads = betas * scores.std(axis=2).mean(axis=1)
    betas[spreads < _VANISHED * spreads.sum()] = 0.0
    equal, count = np.full(len(betas), 1 / len(betas)), len(betas)
    rows = [("fitted", betas), ("averaged", equal), *((names[i], np.eye(count)[i]) for i in range(count))]
    scored = tuple(_scored(what, beta, scores[:, judged], labels[judged]) for what, beta in rows)
    total = len(images.labels)
    return Fit(
        betas=tuple(float(beta) for beta in betas),
        images=images.source,
        fitted=(total + 1) // 2,
        judged=total // 2,
        sigma=card.sigma,
        scored=scored,
    )


def _member_scores(
    predictors: Sequence[Predictor], images: HeldOut, sigma: float | None, progress: Callable[[float], None]
) -> tuple[Array, npt.NDArray[np.int64]]:
    """Scores (members, rows, classes) of the images, or of noisy copies of them, and the image of each row."""
    parts: list[list[Array]] = []
    owners: list[int] = []
    batches: Iterator[tuple[Sequence[int], npt.NDArray[np.float32]]]
    if sigma is None:
        clean = images.pixels * np.float32(1 / 255)
        batches = ((range(first, first + len(batch)), batch) for first, batch in in_batches(clean, _BATCH))
    else:
        copies = noisy_copies(images, sigma, _COPIES * len(images.pixels))
        batches = (([number] * len(noisy), noisy) for number, _, noisy in copies)
    for numbers, batch in batches:
        parts.append([predictor.engine.scores(batch).astype(np.float64) for predictor in predictors])
        owners += list(numbers)
        progress(0)
    scores = np.stack([np.concatenate(own) for own in zip(*parts, strict=True)])
    return scores, np.array(owners, dtype=np.int64)


def minimise_loss(scores: Array, labels: npt.NDArray[np.int64]) -> Array:
    """The betas of at least 0 with the smallest mean cross-entropy; scores are (members, rows, classes)."""
    members, rows = scores.shape[:2]
    # In units of each member's spread, so that the solver's steps fit probabilities and large scores alike.
    scale = np.maximum(scores.std(axis=2).mean(axis=1), 1e-12)
    units = scores / scale[:, None, None]
    at_label = units[:, np.arange(rows), labels]

    def loss(beta: Array) -> tuple[float, Array]:
        total = np.tensordot(beta, units, axes=1)
        shares = softmax(total, axis=1)
        value = (logsumexp(total, axis=1) - beta @ at_label).mean() + _RIDGE * float(beta @ beta)
        gradient = (np.einsum("nk,tnk->tn", shares, units) - at_label).mean(axis=1) + 2 * _RIDGE * beta
        return float(value), gradient

    start = np.full(members, 1 / members)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * members)
    if not np.isfinite(found.fun) or not found.x.any():
        raise ExportError("No betas of these members label the images better than chance: check the data's classes.")
    betas: Array = found.x / scale
    return betas


def _scored(what: str, betas: Array, scores: Array, labels: npt.NDArray[np.int64]) -> Scored:
    total = np.tensordot(betas, scores, axes=1)
    loss = logsumexp(total, axis=1) - total[np.arange(len(labels)), labels]
    return Scored(what, round(float(loss.mean()), 4), round(float((total.argmax(axis=1) == labels).mean()), 4))
