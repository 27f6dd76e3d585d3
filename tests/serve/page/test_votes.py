"""The noisy copies that a page shows, and what n votes prove at each alpha: both are those of real certificates."""

from collections import Counter

import numpy as np
import pytest
from robust.serve.page import prices, views
from robust.serve.page.prices import ALPHAS, SELECTION

from robustinfer import Predictor
from robustinfer.smoothing.noise import add_noise

from ...waiting import PATIENCE
from .conftest import UNDECIDED, constant
from .test_walks import pixels

SEED = 2**64 - 3


def test_views_are_the_copies_that_voted(shown: Predictor) -> None:
    image = constant(UNDECIDED)
    certificate = shown.certify(image, n=24, n0=10, alpha=0.5, seed=SEED)
    found = views(shown, image, count=24, seed=SEED, first=10)
    assert Counter(view.label for view in found.views) == Counter(
        {label: votes for label, votes in enumerate(certificate.counts) if votes}
    )
    assert len({view.class_name for view in found.views}) == 2
    assert found.to_json()["seed"] == str(SEED)


def test_views_show_the_pixels_that_the_model_gets(shown: Predictor) -> None:
    image = constant(100)
    out = np.empty((3, 1, 8, 8), dtype=np.float32)
    add_noise(image, noise="philox4x64-10/lanes", sigma=0.25, seed=5, first=7, out=out)
    found = views(shown, image, count=3, seed=5, first=7)
    assert np.array_equal(pixels(found.picture), image[0])
    for view, copy in zip(found.views, out, strict=True):
        assert np.array_equal(pixels(view.picture), np.round(np.clip(copy[0], 0, 1) * 255))


def test_views_without_a_seed_are_fresh(shown: Predictor) -> None:
    assert views(shown, constant(100), count=1).seed != views(shown, constant(100), count=1).seed


@pytest.mark.parametrize("level", [200, UNDECIDED])
def test_every_price_is_the_radius_of_a_certificate(shown: Predictor, level: int) -> None:
    image, sizes = constant(level), (100, 1000, 5000)
    found = prices(shown, image, sizes=sizes, seconds=PATIENCE, seed=SEED)
    assert (found.sizes, found.alphas) == (sizes, ALPHAS)
    for size, row in zip(sizes, found.radii, strict=True):
        for alpha, radius in zip(ALPHAS, row, strict=True):
            certificate = shown.certify(image, n=size, n0=SELECTION, alpha=alpha, seed=SEED)
            assert radius == certificate.radius
        assert list(row) == sorted(row, reverse=True, key=lambda one: one or 0.0)


def test_a_price_that_no_votes_can_pay_is_missing(shown: Predictor) -> None:
    found = prices(shown, constant(200), sizes=(5, 100), alphas=(0.5, 1e-9), seconds=PATIENCE, seed=1)
    assert found.radii[0][1] is None
    assert found.radii[1][0] is not None


def test_sizes_that_take_too_long_are_left_out(shown: Predictor) -> None:
    found = prices(shown, constant(200), sizes=(100, 1000, 10**9), seconds=0.0, seed=1)
    assert found.sizes == (100,)
