"""A normalisation that is probably wrong is named, by accuracy where there are labels and else by how sure it is."""

import numpy as np
import pytest
from robust.export.wrapping.noise import Photographs
from robust.export.wrapping.normalisation import Array, Numbers, doubt

RIGHT = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
NONE = ((0.0,) * 3, (1.0,) * 3)
PIXELS = np.random.default_rng(0).integers(0, 256, (16, 3, 4, 4), dtype=np.uint8)


def network(mean: Numbers, std: Numbers, pixels: Array) -> Array:
    """Sure of class 1 where pixels are normalised as it was trained, and undecided otherwise."""
    values = (pixels - np.reshape(mean, (1, 3, 1, 1))) / np.reshape(std, (1, 3, 1, 1))
    trained = abs(float(values.std()) - 1.27) < 0.05  # uniform pixels by ImageNet's deviations
    return np.tile(np.array([0, 3 if trained else -0.1], np.float32), (len(pixels), 1))


def test_a_better_one_is_named_with_figures() -> None:
    found = doubt(network, Photographs("photos", PIXELS), *NONE)
    assert found is not None
    assert "ImageNet's usual ones" in found
    assert "0.52 is what its top class gets on average, and 0.95 with" in found
    labelled = Photographs("photos", PIXELS, np.ones(16, dtype=np.int64))
    found = doubt(network, labelled, *NONE)
    assert found is not None
    assert "0.00 of the images get their label, and 1.00 with" in found


def test_the_right_one_is_not_doubted_and_synthetic_images_say_nothing() -> None:
    assert doubt(network, Photographs("photos", PIXELS), *RIGHT) is None
    assert doubt(network, Photographs("synthetic", PIXELS), *NONE) is None
    grey = Photographs("photos", PIXELS[:, :1])
    assert doubt(lambda mean, std, pixels: np.zeros((len(pixels), 2), np.float32), grey, (0.0,), (1.0,)) is None


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_a_small_gain_is_not_mentioned(share: float) -> None:
    def nearly(mean: Numbers, std: Numbers, pixels: Array) -> Array:
        sure = 0.6 + (share if mean[0] else 0.0)
        return np.tile(np.array([sure, 1 - sure], np.float32), (len(pixels), 1))

    assert (doubt(nearly, Photographs("photos", PIXELS), *NONE) is None) == (share < 0.1)
