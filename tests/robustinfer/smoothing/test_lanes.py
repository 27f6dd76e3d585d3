"""Noise from lanes: every value has a word of its own, against a reference that reads the words one by one."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from robustinfer.smoothing import noise
from robustinfer.smoothing.domains import noise_name
from robustinfer.smoothing.lanes import OVERFLOW, LaneLayout, lane_cells, lane_layout, look_up_lanes, settle_open

LANES = "philox4x64-10/lanes"


def test_the_8_bit_domain_draws_lanes() -> None:
    assert noise_name("8-bit") == LANES


def reference(drawn: Any, sigma: float, layout: LaneLayout) -> list[int]:
    """The noise of one sample by the definition, in Python's integers: lane, then reserve, then thresholds counted."""
    numbers = [int(word) for word in drawn]
    thresholds, smallest = noise.thresholds(sigma, "8-bit")
    ends = [int(threshold) for threshold in thresholds]
    found, opened = [], 0
    for value in range(layout.size):
        lane = numbers[value // 4] >> 16 * (value % 4) & 0xFFFF
        low = sum(end <= lane << 48 for end in ends)
        if low != sum(end <= lane << 48 | (1 << 48) - 1 for end in ends):
            word = lane << 48 | numbers[layout.lanes + opened % layout.reserve] >> 16
            low = sum(end <= word for end in ends)
            opened += 1
        found.append(low + smallest)
    return found


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**64 - 1),
    sigma=st.sampled_from([0.02, 0.25, 1.0]),
    size=st.integers(1, 60),
    reserve=st.integers(1, 60),
)
def test_lanes_are_read_by_the_definition(seed: int, sigma: float, size: int, reserve: int) -> None:
    layout = LaneLayout(size, -(-size // 4), min(size, reserve))
    drawn = noise.words(seed, 0, 3, layout.words)
    steps = np.empty((3, size), dtype=np.float32)
    look_up_lanes(drawn, sigma, layout, steps)
    places = np.flatnonzero(np.isinf(steps))
    steps.reshape(-1)[places] = settle_open(drawn, sigma, layout, places)
    assert steps.tolist() == [reference(row, sigma, layout) for row in drawn]


@pytest.mark.parametrize("sigma", [0.01, 0.25, 1.0, 13.0])
def test_at_every_threshold_the_reserve_decides(sigma: float) -> None:
    thresholds, smallest = noise.thresholds(sigma, "8-bit")
    words = np.concatenate([thresholds, thresholds - np.uint64(1)])
    size = len(words)
    layout = LaneLayout(size, -(-size // 4), size)
    drawn = np.zeros((1, layout.words), dtype=np.uint64)
    lanes = np.zeros(4 * layout.lanes, dtype="<u2")
    lanes[:size] = words >> np.uint64(48)
    drawn[0, : layout.lanes] = lanes.view("<u8")
    low = (words << np.uint64(16))[np.isinf(lane_cells(sigma)[lanes[:size]])]
    drawn[0, layout.lanes : layout.lanes + len(low)] = low
    steps = np.empty((1, size), dtype=np.float32)
    look_up_lanes(drawn, sigma, layout, steps)
    places = np.flatnonzero(np.isinf(steps))
    steps.reshape(-1)[places] = settle_open(drawn, sigma, layout, places)
    assert np.array_equal(steps[0], np.searchsorted(thresholds, words, side="right") + smallest)


@pytest.mark.parametrize("size", [1, 64, 784, 3072, 150528])
@pytest.mark.parametrize("sigma", [0.0001, 0.05, 0.25, 1.0, 16.0])
def test_the_reserve_runs_out_as_rarely_as_promised(sigma: float, size: int) -> None:
    """The exact binomial tail stays below what the total variation pays for it."""
    layout = lane_layout(sigma, size)
    chance = np.isinf(lane_cells(sigma)).mean()
    assert 1 <= layout.reserve <= size
    assert stats.binom.sf(layout.reserve, size, chance) <= layout.total_variation <= OVERFLOW
    whole, table = (noise.total_variation(name, sigma, size) for name in (LANES, "philox4x64-10/integer"))  # type: ignore[arg-type]
    assert whole == pytest.approx(table + layout.total_variation, rel=1e-12)
    if size >= 784 and sigma <= 0.25:
        assert layout.words < 0.4 * size  # what lanes are for


def test_the_noise_is_the_rounded_normal_and_its_values_are_independent() -> None:
    sigma, count, size = 0.05, 400, 1001
    out = np.empty((count, size), dtype=np.float32)
    noise.add_noise(np.zeros(size, dtype=np.uint8), noise="philox4x64-10/lanes", sigma=sigma, seed=13, first=0, out=out)
    steps = np.rint(out * 255).astype(np.int64)
    reach = int(2.5 * 255 * sigma)
    edges = special.ndtr((np.arange(-reach, reach + 2) - 0.5) / (255 * sigma))
    expected = np.concatenate([[edges[0]], np.diff(edges), [1 - edges[-1]]]) * steps.size
    observed = np.bincount((np.clip(steps, -reach - 1, reach + 1) + reach + 1).ravel(), minlength=2 * reach + 3)
    assert stats.chisquare(observed, expected).pvalue > 1e-3
    for shift in (1, 2, 3, 4, 16):  # lanes of one word, of one block
        assert abs((out[:, :-shift] * out[:, shift:]).mean()) < 5 * sigma**2 / np.sqrt(out.size)
