"""The noise stream: published vectors, NumPy's own stream, independence of the cut, and the distributions."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any, get_args

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from robustinfer.smoothing import domains, noise, tables

LAST_SEED = 2**64 - 1
KNOWN_ANSWER = [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
SEEDS = st.integers(0, LAST_SEED)


def noisy(image: Any, name: Any, *, sigma: Any = 0.25, seed: Any = 7, first: Any = 0, count: Any = 5) -> Any:
    out = np.empty((count, *image.shape), dtype=np.float32)
    noise.add_noise(image, noise=name, sigma=sigma, seed=seed, first=first, out=out)
    return out


def image_of(shape: Any, name: Any) -> Any:
    pixels = np.random.default_rng(3).integers(0, 256, size=shape, dtype=np.uint8)
    return pixels if domains.domain_of_noise(name) == "8-bit" else pixels.astype(np.float32) / np.float32(255)


def test_the_published_known_answer_comes_out_of_the_counter_before_the_first_sample() -> None:
    # NumPy steps its counter before the first block, so counter 0 is what it would give after counter -1.
    assert list(np.random.Philox(key=0, counter=2**256 - 1).random_raw(4)) == KNOWN_ANSWER
    # Sample -1 of an image of four values is counter 0: the same stream, counted in the same way.
    assert list(np.random.Philox(key=0, counter=0).random_raw(4)) == list(noise.words(0, 0, 1, 4)[0])


@pytest.mark.parametrize("seed", [0, 1, LAST_SEED])
@pytest.mark.parametrize("size", [1, 3, 4, 5, 784])
def test_words_are_those_of_numpys_stream(seed: Any, size: Any) -> None:
    padded = 4 * -(-size // 4)
    raw = np.random.Philox(key=seed).random_raw(6 * padded).reshape(6, padded)
    assert np.array_equal(noise.words(seed, 0, 6, size), raw[:, :size])


@given(seed=SEEDS, size=st.integers(1, 40), first=st.integers(0, 2**40), count=st.integers(1, 12), data=st.data())
def test_a_slice_of_the_samples_has_their_words(seed: Any, size: Any, first: Any, count: Any, data: Any) -> None:
    start = data.draw(st.integers(0, count - 1))
    whole = noise.words(seed, first, count, size)
    assert np.array_equal(noise.words(seed, first + start, count - start, size), whole[start:])


@pytest.mark.parametrize("name", get_args(domains.NoiseName))
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (1, 28, 28), (3, 150, 150)])  # the last exceeds one chunk
def test_samples_do_not_depend_on_batch_order_or_threads(name: Any, shape: Any) -> None:
    image, count = image_of(shape, name), 9
    whole = noisy(image, name, count=count)
    backwards = [noisy(image, name, first=i, count=1) for i in reversed(range(count))]
    assert np.array_equal(np.concatenate(backwards[::-1]), whole)
    with ThreadPoolExecutor(4) as pool:
        pieces = pool.map(lambda first: noisy(image, name, first=first, count=3), range(0, count, 3))
        assert np.array_equal(np.concatenate(list(pieces)), whole)


@settings(deadline=None)
@given(seed=SEEDS, sigma=st.floats(0.01, 2.0), data=st.data())
def test_8_bit_noise_is_the_number_of_thresholds_not_above_the_word(seed: Any, sigma: Any, data: Any) -> None:
    drawn = noise.words(seed, data.draw(st.integers(0, 1000)), 20, 21)
    thresholds, smallest = noise.thresholds(sigma, "8-bit")
    expected = (thresholds[:, None, None] <= drawn).sum(axis=0) + smallest
    assert np.array_equal(noise.grid_steps(drawn, sigma, "8-bit"), expected)


@pytest.mark.parametrize("sigma", [0.001, 0.01, 0.25, 2.0])
def test_16_bit_noise_is_the_number_of_thresholds_not_above_the_word(sigma: Any) -> None:
    thresholds, smallest = noise.thresholds(sigma, "16-bit")
    drawn = noise.words(3, 0, 50, 1001)
    expected = np.searchsorted(thresholds, drawn, side="right") + smallest
    assert np.array_equal(noise.grid_steps(drawn, sigma, "16-bit"), expected)


@pytest.mark.parametrize(
    ("domain", "sigma"),
    # 13 needs 32-bit integers
    [*(("8-bit", sigma) for sigma in (0.01, 0.25, 1.0, 13.0)), *(("16-bit", sigma) for sigma in (0.001, 0.25, 2.0))],
)
def test_grid_noise_at_the_ends_and_at_every_threshold(domain: Any, sigma: Any) -> None:
    thresholds, smallest = noise.thresholds(sigma, domain)
    assert np.all(thresholds[1:] >= thresholds[:-1])
    ends = np.array([0, LAST_SEED], dtype=np.uint64)
    edges = np.concatenate([ends, thresholds, thresholds - np.uint64(1)])
    expected = np.searchsorted(thresholds, edges, side="right") + smallest
    assert np.array_equal(noise.grid_steps(edges, sigma, domain), expected)
    assert expected.min() == smallest
    assert expected.max() == -smallest


def test_8_bit_pixels_are_the_sum_times_one_float() -> None:
    image = image_of((3, 4, 5), "philox4x64-10/integer")
    steps = noise.grid_steps(noise.words(7, 0, 5, image.size), 0.25, "8-bit").reshape(5, 3, 4, 5)
    expected = (image.astype(np.int64) + steps).astype(np.float32) * np.float32(1 / 255)
    assert np.array_equal(noisy(image, "philox4x64-10/integer"), expected)


@pytest.mark.parametrize("given_as", ["float32", "uint8"])
def test_16_bit_pixels_are_the_exact_sum_times_one_float(given_as: Any) -> None:
    image = image_of((3, 4, 5), "philox4x64-10/integer")
    nearest = image.astype(np.int64) * 257
    if given_as == "float32":
        image = np.random.default_rng(4).random((3, 4, 5), dtype=np.float32)
        nearest = [[[round(Fraction(float(x)) * 65535) for x in row] for row in plane] for plane in image]
    steps = noise.grid_steps(noise.words(7, 0, 5, image.size), 0.25, "16-bit").reshape(5, 3, 4, 5)
    exact = np.array(nearest) + steps.astype(np.int64)
    assert np.abs(exact).max() < 2**24
    assert np.array_equal(noisy(image, "philox4x64-10/integer-16"), exact.astype(np.float32) * np.float32(1 / 65535))


def test_floats_are_rounded_to_the_nearest_point_of_the_16_bit_grid() -> None:
    """At both sides of every middle between two grid points, and so everywhere."""
    middles = (np.arange(65535) + 0.5) / 65535
    below, above = (np.nextafter(middles.astype(np.float32), np.float32(side)) for side in (0, 1))
    for pixels in (below, middles.astype(np.float32), above):
        moved = np.abs(noise.on_fine_grid(pixels) - pixels.astype(np.float64) * 65535)
        assert moved.max() <= 0.5
    assert np.array_equal(noise.on_fine_grid(np.arange(256, dtype=np.uint8)), 257 * np.arange(256))


@pytest.mark.parametrize("size", [1, 784, 3072, 150528])
def test_the_cost_of_rounding_covers_two_images_that_were_moved_as_far_as_can_be(size: Any) -> None:
    """Doubles are rounded to single precision, then to the grid: both ways together, for both images."""
    doubles = np.random.default_rng(8).random(200_000)
    moved = np.abs(noise.on_fine_grid(doubles.astype(np.float32)) / 65535 - doubles).max()
    assert moved > 0.499 / 65535
    assert 2 * moved * np.sqrt(size) <= domains.rounding_cost("16-bit", size) < 1.01 * np.sqrt(size) / 65535
    assert domains.rounding_cost("8-bit", size) == 0.0


def test_continuous_pixels_are_the_image_plus_scaled_normals() -> None:
    image = image_of((3, 4, 5), "philox4x64-10/continuous")
    z = noise.continuous(noise.words(7, 0, 5, image.size)).reshape(5, 3, 4, 5)
    assert np.array_equal(noisy(image, "philox4x64-10/continuous"), image + (0.25 * z).astype(np.float32))


def test_continuous_noise_is_symmetric_and_finite_at_the_ends() -> None:
    ends = noise.continuous(np.array([0, 2**63 - 1, 2**63, LAST_SEED], dtype=np.uint64))
    assert ends[0] == pytest.approx(-9.2, abs=0.1)
    assert ends[3] == pytest.approx(0.0, abs=1e-15)
    assert np.isfinite(ends).all()
    drawn = noise.words(5, 0, 10, 100)
    assert np.array_equal(noise.continuous(drawn), -noise.continuous(drawn ^ np.uint64(2**63)))


def test_continuous_noise_is_normal() -> None:
    z = noise.continuous(noise.words(11, 0, 200, 1001)).ravel()
    assert stats.kstest(z, "norm").pvalue > 1e-3
    pixels = z.reshape(200, 1001)
    assert abs(np.corrcoef(pixels[:, 0], pixels[:, 1])[0, 1]) < 0.3
    assert abs((pixels[:-1] * pixels[1:]).mean()) < 5 / np.sqrt(z.size)  # one sample to the next


@pytest.mark.parametrize(("domain", "sigma"), [("8-bit", 0.01), ("8-bit", 0.25), ("16-bit", 0.001)])
def test_grid_noise_is_the_rounded_normal(domain: Any, sigma: Any) -> None:
    levels = {"8-bit": 255, "16-bit": 65535}[domain]
    steps = noise.grid_steps(noise.words(13, 0, 200, 1001), sigma, domain).ravel()
    reach = int(2.5 * levels * sigma)
    inner = np.arange(-reach, reach + 1)
    edges = special.ndtr((np.append(inner, reach + 1) - 0.5) / (levels * sigma))
    expected = np.concatenate([[edges[0]], np.diff(edges), [1 - edges[-1]]]) * steps.size
    clipped = np.clip(steps, -reach - 1, reach + 1) + reach + 1
    observed = np.bincount(clipped, minlength=2 * reach + 3)
    assert stats.chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize(
    ("domain", "sigma"), [("8-bit", 0.05), ("8-bit", 0.25), ("8-bit", 1.0), ("16-bit", 0.001), ("16-bit", 0.007)]
)
def test_thresholds_and_their_error_budget_against_exact_arithmetic(domain: Any, sigma: Any) -> None:
    """The promised total variation covers the distance to the exact rounded Gaussian, computed in 60 digits."""
    thresholds, smallest = noise.thresholds(sigma, domain)
    with mpmath.workdps(60):
        scale = {"8-bit": 255, "16-bit": 65535}[domain] * mpmath.mpf(sigma)
        exact = [mpmath.ncdf((smallest + k + mpmath.mpf(1) / 2) / scale) for k in range(len(thresholds))]
        drawn = [mpmath.mpf(int(t)) / mpmath.mpf(2) ** 64 for t in thresholds]
        cumulative = [0, *(a - b for a, b in zip(exact, drawn, strict=True)), 0]
        masses = (abs(b - a) for a, b in itertools.pairwise(cumulative))
        distance = float(sum(masses) / 2 + exact[0] + (1 - exact[-1]))
    name = {"8-bit": "philox4x64-10/integer", "16-bit": "philox4x64-10/integer-16"}[domain]
    promised = noise.total_variation(name, sigma, 1)  # type: ignore[arg-type]
    assert 0 < distance <= promised < 1e-12
    assert noise.total_variation(name, sigma, 3072) == pytest.approx(3072 * promised)  # type: ignore[arg-type]
    assert noise.total_variation("philox4x64-10/continuous", sigma, 3072) == 0.0


@pytest.mark.parametrize("sigma", [0.05, 0.12, 1 / 3, 1.0])
def test_tails_are_as_exact_as_the_budget_says(sigma: Any) -> None:
    """scipy's ndtr and the rounding of its argument together stay within 2^-50 (1 + x^2)."""
    scale = 255 * sigma
    for k in np.random.default_rng(1).integers(0, int(10 * scale), 200):
        x = (int(k) + 0.5) / scale
        with mpmath.workdps(40):
            exact = mpmath.ncdf(-(int(k) + mpmath.mpf(0.5)) / (255 * mpmath.mpf(sigma)))
            relative = float(abs(mpmath.mpf(float(special.ndtr(-x))) - exact) / exact)
        assert relative <= tables._TAIL_ERROR * (1 + x * x)


@pytest.mark.parametrize("sigma", [0.001, 0.0123, 0.25, 1 / 3, 2.0])
def test_masses_of_the_fine_grid_are_as_exact_as_the_budget_says(sigma: Any) -> None:
    """A mass is the difference of two thresholds, rounded to 2^-64, besides a relative error of 2^-50 (1 + x^2)."""
    thresholds, smallest = noise.thresholds(sigma, "16-bit")
    sampled = np.random.default_rng(1).integers(1, -smallest, 300)
    for k in {1, 2, 3, -smallest, *sampled.tolist()}:
        below = int(thresholds[-smallest - k - 1]) if k < -smallest else 0  # T_{-k-1}, and T_{-k} above it
        drawn = mpmath.mpf(int(thresholds[-smallest - k]) - below) / mpmath.mpf(2) ** 64
        with mpmath.workdps(40):
            scale = 65535 * mpmath.mpf(sigma)
            upper, lower = ((k + side / mpmath.mpf(2)) / scale for side in (1, -1))
            exact = mpmath.ncdf(-lower) - mpmath.ncdf(-upper)
            allowed = mpmath.mpf(2) ** -64 + tables._MASS_ERROR * (1 + (k / scale) ** 2) * exact
            assert abs(drawn - exact) <= allowed


@pytest.mark.parametrize("sigma", [0.25, 2.0])
def test_the_rest_of_a_fine_table_adds_up(sigma: Any) -> None:
    """The total of the lower half is the exact tail at -1/2 step, and the upper half mirrors it."""
    thresholds, smallest = noise.thresholds(sigma, "16-bit")
    assert np.array_equal(thresholds[::-1], np.uint64(0) - thresholds)
    with mpmath.workdps(40):
        exact = mpmath.ncdf(-1 / (2 * 65535 * mpmath.mpf(sigma)))
        total = mpmath.mpf(int(thresholds[-smallest - 1])) / mpmath.mpf(2) ** 64
        assert 2 * abs(total - exact) <= noise.total_variation("philox4x64-10/integer-16", sigma, 1) < 2e-13


def test_derived_seeds_are_fixed_distinct_and_not_the_noise() -> None:
    family = [noise.derive_seed(5, index) for index in range(2000)]
    assert family == [noise.derive_seed(5, index) for index in range(2000)]
    assert len(set(family)) == len(family)
    assert not set(family) & set(np.random.Philox(key=5).random_raw(8000).tolist())
    assert not set(family) & {noise.derive_seed(6, index) for index in range(2000)}
    assert all(0 <= noise.derive_seed(seed, 2**63) <= LAST_SEED for seed in (0, LAST_SEED))
    assert stats.kstest(np.array(family) / 2.0**64, "uniform").pvalue > 1e-3


def test_fresh_seeds_differ() -> None:
    assert len({noise.fresh_seed() for _ in range(100)}) == 100
