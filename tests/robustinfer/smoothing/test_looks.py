"""Looks: crossing probabilities against enumeration and exact sums, the table, and 10^5 simulated bounds."""

import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from robustinfer.smoothing.bounds import clopper_pearson_lower
from robustinfer.smoothing.crossing import ARITHMETIC, crossing
from robustinfer.smoothing.look_table import COLUMNS, MULTIPLES
from robustinfer.smoothing.looks import GRID, look_level, look_sizes, round_to_grid, tight_looks


def by_enumeration(p: float, level: float, sizes: tuple[int, ...]) -> float:
    """Every sequence of samples, with its probability."""
    total = 0.0
    bounds = [clopper_pearson_lower(np.arange(size + 1), size, level) for size in sizes]
    for samples in itertools.product((0, 1), repeat=sizes[-1]):
        if any(bound[sum(samples[:size])] >= p for size, bound in zip(sizes, bounds, strict=True)):
            total += p ** sum(samples) * (1 - p) ** (sizes[-1] - sum(samples))
    return total


def by_fractions(p: Fraction, level: Fraction, sizes: tuple[int, ...]) -> Fraction:
    """Sample by sample in exact arithmetic: the boundary from the definition, P(Bin(n, p) >= x) <= level."""
    alive, crossed = {0: Fraction(1)}, Fraction(0)
    for n in range(1, sizes[-1] + 1):
        moved: dict[int, Fraction] = {}
        for x, mass in alive.items():
            moved[x + 1] = moved.get(x + 1, Fraction(0)) + mass * p
            moved[x] = moved.get(x, Fraction(0)) + mass * (1 - p)
        alive = moved
        if n in sizes:
            tail, boundary, term = Fraction(0), n + 1, p**n
            for x in range(n, -1, -1):
                tail += term
                if tail > level:
                    break
                boundary = x
                term = term * x * (1 - p) / ((n - x + 1) * p)
            crossed += sum((mass for x, mass in alive.items() if x >= boundary), Fraction(0))
            alive = {x: mass for x, mass in alive.items() if x < boundary}
    return crossed


@pytest.mark.parametrize("p", [0.1, 0.5, 0.83, 0.97])
@pytest.mark.parametrize("level", [0.001, 0.02, 0.2])
def test_crossing_is_the_sum_over_all_sequences(p: float, level: float) -> None:
    sizes = (3, 5, 6, 9, 12)
    found = crossing(p, [level], sizes)[0]
    for look in range(1, len(sizes) + 1):
        assert found[look - 1] == pytest.approx(by_enumeration(p, level, sizes[:look]), abs=1e-12)


@pytest.mark.parametrize(("p", "level"), [("1/2", "1/500"), ("7/10", "1/10000"), ("19/20", "1/100"), ("1/8", "1/1000")])
def test_crossing_is_the_exact_sum(p: str, level: str) -> None:
    sizes = (40, 60, 90, 100, 115, 133)
    exact = float(by_fractions(Fraction(p), Fraction(level), sizes))
    assert exact > 0
    assert exact - ARITHMETIC <= crossing(float(Fraction(p)), [float(Fraction(level))], sizes)[0, -1]
    assert crossing(float(Fraction(p)), [float(Fraction(level))], sizes)[0, -1] == pytest.approx(exact, rel=1e-6)


def test_crossing_is_never_below_that_of_a_smaller_p() -> None:
    """The step of the proof: for one boundary, more probable successes cross it more often."""
    sizes, generator = (20, 30, 45), np.random.default_rng(3)
    boundary = [clopper_pearson_lower(np.arange(size + 1), size, 0.02) >= 0.6 for size in sizes]
    uniform = generator.random((20_000, sizes[-1]))
    shares = []
    for p in (0.3, 0.45, 0.55, 0.6):
        counts = (uniform < p).cumsum(axis=1)[:, np.array(sizes) - 1]
        shares.append(np.any([cross[counts[:, look]] for look, cross in enumerate(boundary)], axis=0))
    for one, other in itertools.pairwise(shares):
        assert not (one & ~other).any()  # pathwise: whoever crosses at the smaller p crosses at the larger


@pytest.mark.parametrize("index", [700, 1269, 1500, 2600, 3250])
def test_the_table_covers_the_crossing_probabilities(index: int) -> None:
    """Recomputed at points of the grid, 1/2 among them, for levels of all sizes and the looks up to 5,000 samples."""
    levels = list(MULTIPLES)[::6]
    sizes = tight_looks(5_000)
    found = crossing(float(GRID[index]), levels, sizes)
    for row, level in enumerate(levels):
        for column, below in enumerate(COLUMNS):
            if below <= 5_000:
                last = sum(size < below for size in sizes) - 1
                assert found[row, last] <= level * MULTIPLES[level][column]


def test_the_table_is_tight_at_one_half() -> None:
    """It is no loose bound either: at p = 1/2 most of what it allows is used."""
    level = 3.8e-05
    (found,) = crossing(float(GRID[np.searchsorted(GRID, 0.5)]), [level], tight_looks(5_000))
    assert found[-1] > 0.85 * level * MULTIPLES[level][COLUMNS.index(5_000)]


@pytest.mark.parametrize("share", [0.05, 0.001, 1e-5, 1e-12])
@pytest.mark.parametrize(("n", "start"), [(1, 100), (50, 32), (150, 100), (1_000, 32), (100_000, 100), (10**6, 32)])
def test_a_level_is_between_the_share_and_its_part(share: float, n: int, start: int) -> None:
    sizes = look_sizes(n, start)
    assert share / len(sizes) <= look_level(share, n, start) <= share
    assert look_level(share / 2, n, start) <= look_level(share, n, start)


def test_bounds_are_rounded_down_to_the_grid() -> None:
    assert (np.diff(GRID) > 0).all()
    assert GRID[np.searchsorted(GRID, 0.5)] == 0.5
    for p in np.random.default_rng(0).random(200):
        rounded = round_to_grid(float(p))
        assert rounded <= p
        assert rounded == 0.0 or rounded in GRID
    assert [round_to_grid(float(p)) for p in GRID[::100]] == list(GRID[::100])
    assert round_to_grid(0.04) == 0.0


@pytest.mark.parametrize(("n", "start", "share"), [(2_000, 100, 0.01), (5_000, 32, 0.001)])
def test_bounds_are_ever_wrong_with_probability_at_most_their_share(n: int, start: int, share: float) -> None:
    """10^5 sequences at p = 1/2, where errors come most often: at most the share, and most of it."""
    sequences, generator = 100_000, np.random.default_rng(7)
    level, p = look_level(share, n, start), 0.5
    counts, wrong = np.zeros(sequences, dtype=np.int64), np.zeros(sequences, dtype=bool)
    for before, size in zip((0, *look_sizes(n, start)), look_sizes(n, start), strict=False):
        counts += generator.binomial(size - before, p, sequences)
        possible = np.arange(size + 1)
        wrong |= (clopper_pearson_lower(possible, size, level) >= p)[counts]
    test: Any = stats.binomtest(int(wrong.sum()), sequences, share, alternative="greater")
    assert test.pvalue > 1e-6
    assert wrong.mean() > 0.6 * share


def test_the_page_about_the_guarantee_says_what_a_look_has() -> None:
    """Of n = 100,000 at alpha = 0.001, and of what a share of alpha is divided by where it is another."""
    top, two = 0.001 / look_level(0.001, 100_000, 100), 0.0009 / look_level(0.0009, 100_000, 100)
    page = " ".join((Path(__file__).parents[3] / "docs" / "guarantee.md").read_text().split())
    assert len(look_sizes(100_000, 100)) == 51
    assert (
        f"At alpha = 0.001 each look has 1/{top:.0f} of alpha instead (top-class), or 1/{two:.0f} of 0.9 alpha" in page
    )
