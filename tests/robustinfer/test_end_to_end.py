"""Soundness the whole way: image, noise, engine, votes, certificate, on a classifier whose radius is known exactly."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from robustinfer import Predictor

ALPHA, CERTIFICATES, SIGMA = 0.05, 600, 0.25
LEVEL = 150  # grey level of the first pixel: 22.5 levels above the boundary of `half_space`
DISTANCE = 22.5 / 255

SETTINGS: dict[str, dict[str, Any]] = {
    "fixed": {"n": 60, "n0": 10},
    "same-sample": {"n": 60, "n0": 0},
    "radius": {"n": 150, "n0": 10, "radius": 0.05},
    "tolerance": {"n": 150, "n0": 30, "tolerance": 0.05},
    "top-class": {"n": 60, "n0": 10, "bound": "top-class"},
    "16-bit": {"n": 60, "n0": 10, "domain": "16-bit"},
}


@pytest.mark.parametrize("mode", SETTINGS)
def test_false_certificates_are_at_most_alpha(
    mode: Any, predictor_of: Callable[..., Predictor], half_space: Callable[..., Any]
) -> None:
    predictor = predictor_of(half_space, shape=(1, 1, 1), sigma=SIGMA, batch=4096)
    image = np.full((1, 1, 1), LEVEL, dtype=np.uint8)
    found = list(predictor.certify_many([image] * CERTIFICATES, seed=3, alpha=ALPHA, **SETTINGS[mode]))
    false = sum(c.label == 0 or c.radius > DISTANCE for c in found)
    assert stats.binomtest(false, CERTIFICATES, ALPHA, alternative="greater").pvalue > 1e-4
    assert sum(c.label == 1 for c in found) > 0


def test_votes_have_the_binomial_distribution_of_the_known_probability(
    predictor_of: Callable[..., Predictor], half_space: Callable[..., Any]
) -> None:
    """The link the certificates rest on: counts of independent seeds are Bin(n, Phi(distance / sigma))."""
    predictor = predictor_of(half_space, shape=(1, 1, 1), sigma=SIGMA, batch=4096)
    image = np.full((1, 1, 1), LEVEL, dtype=np.uint8)
    counts = [c.counts[1] for c in predictor.certify_many([image] * 800, seed=4, n=100, n0=0)]
    p = special.ndtr(DISTANCE / SIGMA)
    edges = stats.binom.ppf(np.linspace(0, 1, 9)[1:-1], 100, p)
    below = np.diff(np.concatenate([[0], stats.binom.cdf(edges, 100, p), [1]]))
    observed = np.bincount(np.searchsorted(edges, counts, side="left"), minlength=len(below))
    assert stats.chisquare(observed, below * len(counts)).pvalue > 1e-3


def test_the_radius_of_a_linear_model_file_comes_close_to_the_margin(linear_model: Callable[..., Path]) -> None:
    """An ONNX file, many pixels: the radius approaches margin / |w_1 - w_0| from below as n grows."""
    generator = np.random.default_rng(0)
    weights = generator.normal(size=(2, 48)).astype(np.float32)
    image = generator.integers(0, 256, size=(3, 4, 4), dtype=np.uint8)
    pixels = image.reshape(-1) / 255
    difference = weights[1].astype(float) - weights[0]
    bias = np.array([0.0, 0.2 * np.linalg.norm(difference) - difference @ pixels])  # the boundary is 0.2 away
    predictor = Predictor.load(linear_model(weights, bias, shape=(3, 4, 4), sigma=0.25))
    radii = [predictor.certify(image, n=n, seed=n).radius for n in (500, 5_000, 100_000)]
    assert radii == sorted(radii)
    assert max(radii) <= 0.2
    assert radii[-1] == pytest.approx(0.2, abs=0.005)
    assert predictor.certify(image, n=500, seed=1).label == 1
    fine = predictor.certify(image, n=100_000, seed=1, domain="16-bit").radius  # pays sqrt(48)/65535 = 0.0001
    assert 0.195 < fine <= 0.2 - np.sqrt(48) / 65535
