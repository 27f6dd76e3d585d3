"""Walks: distances, what is proven, and what the two classifiers say, where the truth is known."""

import base64
import io
import math
from typing import Any

import numpy as np
import pytest
from PIL import Image
from robust.serve.page import walk
from robust.serve.page.walks import POINTS, random_direction

from robustinfer import Predictor
from robustinfer.errors import InputError

from .conftest import BRIGHT, constant

Array = np.ndarray[Any, Any]


def pixels(uri: str) -> Array:
    """The pixels of a PNG file in an address."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))), dtype=np.int64)


def test_points_are_whole_pictures_at_the_distances_they_say(shown: Predictor) -> None:
    found = walk(shown, None, constant(BRIGHT), random_direction((1, 8, 8), 5), radius=0.3)
    assert len(found.points) == POINTS
    assert found.points[0].distance == 0
    for point in found.points:
        exact = math.sqrt(((pixels(point.picture) - BRIGHT) ** 2).sum()) / 255
        assert exact <= point.distance < exact + 2e-6
        assert point.proven == (exact < 0.3)
    assert 0.55 < found.points[-1].distance < 0.65


def test_a_point_at_the_radius_itself_is_not_proven(shown: Predictor) -> None:
    """What is certified is every image at a distance below the radius: from white to black in one pixel it is 1."""
    direction = np.zeros((1, 8, 8))
    direction[0, 0, 0] = -1

    def proven(radius: float) -> dict[int, bool]:
        found = walk(shown, None, constant(255), direction, radius=radius)
        return {int(pixels(point.picture)[0, 0]): point.proven for point in found.points}

    assert not proven(1.0)[0]
    assert proven(math.nextafter(1.0, 2.0))[0]
    assert all(inside for level, inside in proven(1.0).items() if level)


def test_an_ordinary_network_flips_where_its_pixel_does(shown: Predictor, ordinary: Predictor) -> None:
    direction = np.zeros((1, 8, 8))
    direction[0, 0, 0] = -52
    found = walk(shown, ordinary, constant(BRIGHT), direction, radius=0.5, attack=True)
    for point in found.points:
        first = pixels(point.picture)[0, 0] / 255
        assert point.ordinary_name == ("bright" if first > 0.75 else "medium" if first > 0.25 else "dark")
        assert point.class_name == "bright"  # the mean of 64 pixels hardly moves
    flipped = [point.distance for point in found.points if point.ordinary_name != "bright"]
    assert min(flipped) < 0.2 < 0.5 < max(flipped)


def test_our_label_changes_beyond_the_radius_only(shown: Predictor) -> None:
    """Straight towards the next class, whose border is (230/255 - 0.75) * 8 away: as near as any direction gets."""
    certificate = shown.certify(constant(BRIGHT), n=10_000, seed=3)
    border = (BRIGHT / 255 - 0.75) * 8
    assert 0.5 < certificate.radius < border
    found = walk(shown, None, constant(BRIGHT), -np.ones((1, 8, 8)), radius=certificate.radius)
    for point in found.points:
        if point.proven:
            assert point.class_name in ("bright", None)
        if abs(point.distance - border) > 0.25:  # a standard deviation from the border the vote is clear
            assert point.class_name == ("bright" if point.distance < border else "medium")
    assert {point.class_name for point in found.points if not point.proven} >= {"bright", "medium"}


def test_no_label_flips_inside_the_radius_in_many_directions(shown: Predictor) -> None:
    """Each label is wrong with probability 0.001 at most; the seeds of the tests are fixed."""
    certificate = shown.certify(constant(BRIGHT), n=10_000, seed=3)
    for number in range(20):
        found = walk(shown, None, constant(BRIGHT), random_direction((1, 8, 8), number), radius=certificate.radius)
        assert {point.label for point in found.points if point.proven} <= {certificate.label, None}


def test_directions_are_fixed_and_differ() -> None:
    assert np.array_equal(random_direction((1, 8, 8), 3), random_direction((1, 8, 8), 3))
    assert not np.array_equal(random_direction((1, 8, 8), 3), random_direction((1, 8, 8), 4))


def test_where_nothing_is_proven_a_walk_says_so(shown: Predictor) -> None:
    found = walk(shown, None, constant(191), random_direction((1, 8, 8), 1), radius=0.0)
    assert not any(point.proven for point in found.points)
    assert found.points[-1].distance > 0.2


def test_starts_at_whole_grey_levels(shown: Predictor) -> None:
    with pytest.raises(InputError, match="starts at an 8-bit image"):
        walk(shown, None, np.full((1, 8, 8), 0.5, dtype=np.float32), np.ones((1, 8, 8)), radius=0.1)
