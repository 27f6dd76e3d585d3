"""Images like the published ones: how p_A is spread over the CIFAR-10 test set for smoothed ResNet-110s.

Rebuilt from published certified accuracies (models of Cohen, Rosenfeld and Kolter 2019, certified on all 10,000 test
images with n = 100,000 and alpha = 0.001): the certified accuracy at radius r is the share of images whose label is
right and whose radius is at least r. Between the published radii the share is interpolated, and beyond the last one it
is fitted to the published average certified radius (ACR).

What is not published is assumed, and said here: images that are certified with a wrong label have p_A even in (0.5,
0.85), abstentions have p_A even in (0.25, 0.5), and the runner-up holds `runner_up` of what the top class leaves (0.55
to 0.62 was measured on MNIST), but at most a share of p_A that is even in (0.5, 1); the other eight classes have the
rest.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

__all__ = ["CLASSES", "PUBLISHED", "Population", "Published", "population"]

CLASSES = 10
ALPHA, N = 0.001, 100_000
STEP = 0.25


@dataclass(frozen=True)
class Published:
    """One model: certified accuracies (%) at radii 0, 0.25, 0.5, ..., its ACR, and its abstentions (%)."""

    sigma: float
    certified: tuple[float, ...]
    acr: float
    abstained: float


PUBLISHED = (
    Published(0.12, (83.2, 59.8), 0.276, 3.2),
    Published(0.25, (76.7, 61.2, 42.2, 25.1), 0.424, 8.0),
    Published(0.50, (65.7, 54.9, 42.8, 32.5, 22.0, 14.1, 8.3), 0.525, 15.2),
    Published(1.00, (47.1, 40.9, 33.8, 27.7, 22.1, 17.2, 13.3), 0.511, 29.6),
)


@dataclass(frozen=True)
class Population:
    """Images: the probabilities of their classes (class 0 is the top one), and whether class 0 is the true one."""

    sigma: float
    probabilities: npt.NDArray[np.float64]
    correct: npt.NDArray[np.bool_]


def population(model: Published, images: int, generator: np.random.Generator, *, runner_up: float = 0.6) -> Population:
    """Draw images like those of a published model."""
    radii, shares = _survival(model)
    place = generator.permutation(images) / images + 0.5 / images  # even places: no luck in the draw
    right, abstained = shares[0], model.abstained / 100
    correct, silent = place < right, place >= 1 - abstained
    p = generator.uniform(0.5, 0.85, images)
    p[silent] = generator.uniform(0.25, 0.5, int(silent.sum()))
    p[correct] = ndtr(np.interp(-place[correct], -shares, radii) / model.sigma)
    # The largest radius n samples can prove says no more than that all of them agreed.
    agreed = correct & (place < shares[-1])
    p[agreed] = 1 - generator.uniform(0, 1 / N, int(agreed.sum()))
    rest = 1 - p
    second = np.minimum(runner_up * rest, generator.uniform(0.5, 1.0, images) * p)
    others = np.repeat(((rest - second) / (CLASSES - 2))[:, None], CLASSES - 2, axis=1)
    probabilities = np.column_stack([p, second, others, np.zeros(images)])
    return Population(model.sigma, probabilities / probabilities.sum(axis=1, keepdims=True), correct)


def _survival(model: Published) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Radii, and the share of images that are right with at least that radius; the end is fitted to the ACR."""
    shares = np.array(model.certified) / 100
    radii = STEP * np.arange(len(shares))
    ceiling = model.sigma * float(ndtri(ALPHA ** (1 / N)))
    missing = model.acr - STEP * float((shares[1:] + shares[:-1]).sum()) / 2
    at_ceiling = 2 * missing / (ceiling - radii[-1]) - shares[-1]
    if at_ceiling >= 0:
        return np.append(radii, ceiling), np.append(shares, at_ceiling)
    return np.append(radii, radii[-1] + 2 * missing / shares[-1]), np.append(shares, 0.0)
