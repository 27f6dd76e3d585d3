"""Bounds and radii against independent implementations and exact sums."""

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from robustinfer.smoothing import bounds

PROBABILITIES = st.floats(0.0, 1.0)
SIGMAS = st.floats(0.01, 4.0)


@pytest.mark.parametrize("alpha", [0.05, 0.01, 0.001])
def test_clopper_pearson_agrees_with_statsmodels_for_every_count_up_to_200(alpha: Any) -> None:
    for n in range(1, 201):
        k = np.arange(n + 1)
        lower, upper = proportion_confint(k, np.full(n + 1, n), alpha=2 * alpha, method="beta")
        assert np.abs(bounds.clopper_pearson_lower(k, n, alpha) - lower).max() < 1e-9
        assert np.abs(bounds.clopper_pearson_upper(k, n, alpha) - upper).max() < 1e-9
        both = bounds.clopper_pearson_interval(k, n, 1 - 2 * alpha)
        assert np.abs(np.stack(both) - np.stack([lower, upper])).max() < 1e-9


@pytest.mark.parametrize("n", [1, 2, 3, 7, 20, 53, 200])
def test_clopper_pearson_agrees_with_scipys_binomial_test(n: Any) -> None:
    for k in range(n + 1):
        ours = bounds.clopper_pearson_lower(k, n, 0.001), bounds.clopper_pearson_upper(k, n, 0.001)
        low = stats.binomtest(k, n, alternative="greater").proportion_ci(0.999).low
        high = stats.binomtest(k, n, alternative="less").proportion_ci(0.999).high
        assert ours == pytest.approx((low, high), abs=1e-9)


@pytest.mark.slow  # scipy solves for each interval: a minute and more
def test_clopper_pearson_agrees_with_scipys_binomial_test_for_every_count_up_to_200() -> None:
    for n in range(1, 201):
        lower = bounds.clopper_pearson_lower(np.arange(n + 1), n, 0.001)
        for k in range(n + 1):
            assert lower[k] == pytest.approx(
                stats.binomtest(k, n, alternative="greater").proportion_ci(0.999).low, abs=1e-9
            )


@pytest.mark.parametrize("k", [0, 1, 2, 500, 49_999, 50_211, 68_327, 99_000, 99_990, 99_999, 100_000])
def test_clopper_pearson_at_a_hundred_thousand(k: Any) -> None:
    n, alpha = 100_000, 0.001
    ours = bounds.clopper_pearson_lower(k, n, alpha), bounds.clopper_pearson_upper(k, n, alpha)
    assert ours == pytest.approx(proportion_confint(k, n, alpha=2 * alpha, method="beta"), abs=1e-9)
    assert ours[0] == pytest.approx(stats.binomtest(k, n, alternative="greater").proportion_ci(0.999).low, abs=1e-9)
    assert ours[1] == pytest.approx(stats.binomtest(k, n, alternative="less").proportion_ci(0.999).high, abs=1e-9)


@pytest.mark.parametrize(("k", "n"), [(9, 10), (150, 200), (51_000, 100_000), (99_950, 100_000), (99_999, 100_000)])
@pytest.mark.parametrize("alpha", [0.01, 0.001, 0.001 / 56])
def test_the_bound_errs_by_less_than_the_roundoff_that_is_taken_off(k: Any, n: Any, alpha: Any) -> None:
    """P(Bin(n, p) >= k) = alpha at the bound, in 40 digits: the error in p is far below 1e-12."""
    p = bounds.clopper_pearson_lower(k, n, alpha)
    with mpmath.workdps(40):
        step = mpmath.mpf(bounds._ROUNDOFF)
        assert binomial_tail(k, n, mpmath.mpf(p) - step) < alpha
        assert binomial_tail(k, n, mpmath.mpf(p) + step) > alpha


def binomial_tail(k: Any, n: Any, p: Any) -> Any:
    """P(Bin(n, p) >= k), summed term by term until the terms no longer matter."""
    term = mpmath.binomial(n, k) * p**k * (1 - p) ** (n - k)
    total = mpmath.mpf(0)
    for j in range(k, n + 1):
        total += term
        if term < total * mpmath.mpf(10) ** -35:
            break
        term *= p / (1 - p) * (n - j) / (j + 1)
    return total


@pytest.mark.parametrize("n", [10, 37, 100])
def test_the_bounds_hold_with_their_probability_for_every_p(n: Any) -> None:
    """Exact coverage: P(bound on the wrong side of p), summed over the binomial distribution, is at most alpha."""
    alpha, k = 0.01, np.arange(n + 1)
    lower, upper = bounds.clopper_pearson_lower(k, n, alpha), bounds.clopper_pearson_upper(k, n, alpha)
    edges = np.concatenate([lower - 1e-10, lower + 1e-10, upper - 1e-10, upper + 1e-10])
    for p in np.clip(np.concatenate([edges, np.linspace(0, 1, 101)]), 0, 1):
        mass = stats.binom.pmf(k, n, p)
        assert mass[lower > p].sum() <= alpha * (1 + 1e-7)
        assert mass[upper < p].sum() <= alpha * (1 + 1e-7)


def test_closed_forms_at_the_ends() -> None:
    assert bounds.clopper_pearson_lower(0, 50, 0.01) == 0.0
    assert bounds.clopper_pearson_upper(50, 50, 0.01) == 1.0
    assert bounds.clopper_pearson_lower(50, 50, 0.01) == pytest.approx(0.01 ** (1 / 50), abs=1e-15)
    assert bounds.clopper_pearson_upper(0, 50, 0.01) == pytest.approx(1 - 0.01 ** (1 / 50), abs=1e-15)
    assert (bounds.clopper_pearson_lower(0, 0, 0.01), bounds.clopper_pearson_upper(0, 0, 0.01)) == (0.0, 1.0)


@given(n=st.integers(0, 3000), data=st.data())
def test_the_p_value_is_that_of_the_two_sided_binomial_test(n: Any, data: Any) -> None:
    k = data.draw(st.integers(math.ceil(n / 2), n))
    expected = stats.binomtest(k, n, 0.5).pvalue if n else 1.0
    assert bounds.binomial_p_value(k, n) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("alpha", [0.5, 0.05, 0.01, 0.001, 1e-9])
def test_the_smallest_n_is_the_first_whose_unanimity_proves_something(alpha: Any) -> None:
    n = bounds.smallest_n(alpha)
    assert bounds.clopper_pearson_lower(n, n, alpha) > 0.5
    assert bounds.clopper_pearson_lower(n - 1, n - 1, alpha) <= 0.5


@given(p=PROBABILITIES, sigma=SIGMAS)
def test_the_top_class_radius_is_finite_and_below_the_exact_one(p: Any, sigma: Any) -> None:
    radius = bounds.radius_top_class(p, sigma)
    assert math.isfinite(radius)
    if 1e-9 < p < 1 - 1e-9:
        with mpmath.workdps(30):
            exact = sigma * mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(p) - 1)
        assert radius < exact


@given(lower=PROBABILITIES, upper=PROBABILITIES, sigma=SIGMAS)
def test_the_two_class_radius_is_finite_and_never_below_the_top_class_one(lower: Any, upper: Any, sigma: Any) -> None:
    radius = bounds.radius_two_class(lower, upper, sigma)
    assert math.isfinite(radius)
    assert radius >= bounds.radius_top_class(lower, sigma) - 1e-9
    if upper >= 1 - lower and 1e-6 < lower < 1 - 1e-6:
        assert radius == pytest.approx(bounds.radius_top_class(lower, sigma), abs=1e-9)


@given(st.floats(max_value=1e12) | st.sampled_from([math.inf, -math.inf, math.nan]))
def test_a_radius_is_rounded_down_by_less_than_a_millionth(radius: Any) -> None:
    rounded = bounds.round_radius_down(radius)
    assert math.isfinite(rounded)
    assert rounded >= 0
    if math.isfinite(radius) and radius > 0:
        assert rounded <= radius
        if radius < 1e6:
            assert radius - rounded < 1.001e-6
    else:
        assert rounded == 0


@given(st.integers(1, 10**7))
def test_a_rounded_radius_has_at_most_six_digits(steps: Any) -> None:
    radius = bounds.round_radius_down(steps / 1e6 + 3e-7)
    assert round(radius, 6) == radius


@given(st.integers(0, 10**7), st.integers(0, 6))
def test_a_radius_is_shown_with_its_own_digits_and_never_rounded_up(steps: Any, digits: Any) -> None:
    radius = steps / 1e6
    shown = bounds.format_radius(radius, digits)
    assert len(shown.partition(".")[2]) == digits
    assert float(shown) <= radius
    assert radius - float(shown) < 1.000001 * 10**-digits
    assert bounds.format_radius(float(shown), digits) == shown


def test_a_radius_of_few_digits_is_shown_as_it_is() -> None:
    assert bounds.format_radius(0.29) == "0.290", "although 0.29 * 1000 is below 290"
    assert bounds.format_radius(1.6739) == "1.673"


@given(st.integers(0, 10**7), st.integers(1, 10**6))
def test_the_l_inf_radius_is_the_largest_of_six_digits_that_the_l2_radius_proves(steps: Any, size: Any) -> None:
    radius = steps / 10**6
    found = bounds.radius_linf(radius, size)
    assert Fraction(found) ** 2 * size <= Fraction(radius) ** 2
    assert (Fraction(found) + Fraction(1, 10**6) + Fraction(1, 10**12)) ** 2 * size > Fraction(radius) ** 2


def test_the_l_inf_radius_by_hand() -> None:
    assert bounds.radius_linf(0.5, 784) == 0.017857  # 0.5 / 28
    assert (bounds.radius_linf(0.75, 9), bounds.radius_linf(0.0, 4), bounds.radius_linf(0.3, 1)) == (0.25, 0.0, 0.3)
