"""The Predictor as an application uses it, on a model file."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robustinfer import Certificate, Predictor
from robustinfer.errors import SettingError
from robustinfer.files import sha256
from robustinfer.images import image_digest
from robustinfer.requests import selection_of

SHAPE = (3, 4, 4)
GENERATOR = np.random.default_rng(0)
WEIGHTS = GENERATOR.normal(size=(3, 48)).astype(np.float32)
IMAGES = GENERATOR.integers(0, 256, size=(5, *SHAPE), dtype=np.uint8)


@pytest.fixture
def path(linear_model: Callable[..., Path]) -> Any:
    return linear_model(WEIGHTS, shape=SHAPE, name="demo")


@pytest.fixture
def predictor(path: Any) -> Any:
    return Predictor.load(path)


def test_scores_are_those_of_the_graph(predictor: Any) -> None:
    expected = (IMAGES.reshape(5, -1) / 255) @ WEIGHTS.T
    assert np.allclose(predictor.scores(IMAGES), expected, atol=1e-4)
    assert np.allclose(predictor.scores(IMAGES / 255), expected, atol=1e-4)
    assert np.allclose(predictor.scores(np.moveaxis(IMAGES, 1, 3)), expected, atol=1e-4)
    assert np.allclose(predictor.scores(IMAGES[0]), expected[:1], atol=1e-4)
    assert predictor.scores(IMAGES[:0]).shape == (0, 3)


def test_scores_are_cut_into_batches(path: Any) -> None:
    small = Predictor.load(path, batch=2)
    assert np.allclose(small.scores(IMAGES), Predictor.load(path).scores(IMAGES), atol=1e-6)


def test_answers_name_the_model(predictor: Any, path: Any) -> None:
    for answer in (predictor.certify(IMAGES[0], n=200), predictor.predict(IMAGES[0])):
        assert (answer.model.name, answer.model.version, answer.model.digest) == ("demo", "1", sha256(path))


def test_predictions_follow_the_scores_where_they_are_clear(predictor: Any) -> None:
    for image in IMAGES:
        prediction = predictor.predict(image)
        if not prediction.abstained:
            assert prediction.class_name == predictor.card.classes[prediction.label]
        assert sum(prediction.counts) + prediction.invalid == prediction.samples_used <= 1000


def test_a_buffer_that_is_filled_again_is_not_an_image_s(predictor: Any) -> None:
    """A camera, or a loop over a file, hands out one array again and again."""

    def frames() -> Iterator[Any]:
        buffer = np.empty(SHAPE, dtype=np.uint8)
        for image in IMAGES:
            buffer[:] = image
            yield buffer

    expected = list(predictor.certify_many(IMAGES, n=200, seed=7))
    found = list(predictor.certify_many(frames(), n=200, seed=7))
    assert [c.image for c in found] == [image_digest(image) for image in IMAGES]
    assert [c.counts for c in found] == [c.counts for c in expected]


def test_seeds_are_fresh_unless_given(predictor: Any) -> None:
    one, two = (predictor.certify(IMAGES[0], n=200) for _ in range(2))
    assert one.seed != two.seed
    assert predictor.certify(IMAGES[0], n=200, seed=one.seed).counts == one.counts
    family = [c.seed for c in predictor.certify_many(IMAGES, n=200, seed=7)]
    assert family == [c.seed for c in predictor.certify_many(IMAGES, n=200, seed=7)]
    assert len(set(family)) == 5
    assert len({c.seed for c in predictor.certify_many(IMAGES, n=200)}) == 5


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_seeds_at_the_ends(predictor: Any, seed: Any) -> None:
    certificate = predictor.certify(IMAGES[0], n=200, seed=seed)
    assert certificate.seed == seed
    assert predictor.verify(certificate, IMAGES[0]).ok


def test_the_noise_fits_the_pixels(predictor: Any) -> None:
    assert predictor.certify(IMAGES[0], n=200).noise == "philox4x64-10/lanes"
    assert predictor.certify(IMAGES[0], n=200, domain="16-bit").noise == "philox4x64-10/integer-16"
    assert predictor.certify(IMAGES[0] / 255, n=200).noise == "philox4x64-10/integer-16"


def test_both_domains_agree_on_the_radius(predictor: Any) -> None:
    coarse, fine = (predictor.certify(IMAGES[1], n=20_000, domain=k, seed=1) for k in ("8-bit", "16-bit"))
    assert coarse.label == fine.label
    assert coarse.radius == pytest.approx(fine.radius, abs=0.02)


def test_the_radius_among_all_images_pays_for_their_rounding(predictor_of: Any) -> None:
    """Unanimous votes prove the same in both domains, but for sqrt(d) (1/65535 + 2^-24) and 1e-6 of rounding down."""
    predictor = predictor_of(lambda images: np.tile([0.0, 1.0], (len(images), 1)), shape=SHAPE)
    coarse, fine = (predictor.certify(IMAGES[4], n=1000, n0=10, domain=k, seed=2) for k in ("8-bit", "16-bit"))
    cost = np.sqrt(np.prod(SHAPE)) * (1 / 65535 + 2.0**-24)
    assert cost - 1e-6 <= coarse.radius - fine.radius <= cost + 2e-6


def test_defaults(predictor: Any) -> None:
    certificate = predictor.certify(IMAGES[0], n=5000)
    assert (certificate.alpha, certificate.n0, certificate.bound, certificate.procedure) == (
        0.001,
        100,
        "two-class",
        "fixed",
    )
    assert certificate.samples_used == 5100
    small = predictor.certify(IMAGES[0], n=500)
    assert (small.n0, small.samples_used, small.bound) == (12, 512, "two-class")
    assert predictor.certify(IMAGES[0], n=500, n0=0).bound == "top-class"
    assert [selection_of(n) for n in (10, 400, 1000, 4000, 100_000)] == [10, 10, 25, 100, 100]


def test_a_certificate_says_who_chose_its_seed(
    predictor_of: Callable[..., Predictor], half_space: Callable[..., Any]
) -> None:
    predictor, image = predictor_of(half_space), np.full((1, 2, 2), 200, np.uint8)
    assert predictor.certify(image, n=100).seed_origin == "runtime"
    assert predictor.certify(image, n=100, seed=7).seed_origin == "caller"
    many = {
        "runtime": predictor.certify_many([image], n=100),
        "caller": predictor.certify_many([image], n=100, seeds=[7]),
        "data set": predictor.certify_many([image], n=100, seed=7),
    }
    for origin, certificates in many.items():
        (certificate,) = certificates
        assert certificate.seed_origin == certificate.to_json()["seed_origin"] == origin
        assert Certificate.from_json(certificate.to_json()) == certificate


def test_derived_seeds_belong_to_the_number_of_the_image(
    predictor_of: Callable[..., Predictor], half_space: Callable[..., Any]
) -> None:
    predictor, image = predictor_of(half_space), np.full((1, 2, 2), 200, np.uint8)
    whole = [one.seed for one in predictor.certify_many([image] * 6, n=100, seed=7)]
    part = [one.seed for one in predictor.certify_many([image] * 3, n=100, seed=7, numbers=range(1, 6, 2))]
    assert part == whole[1::2]
    with pytest.raises(SettingError, match="more images than numbers"):
        list(predictor.certify_many([image] * 3, n=100, seed=7, numbers=[1]))
    with pytest.raises(SettingError, match="for seed, found -1"):
        list(predictor.certify_many([image], n=100, seed=-1))
