"""The yardstick: Wald's figures in closed form, and how they change with the question."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import special

from robustinfer.smoothing.yardstick import least_samples, least_samples_of_votes

ASK: dict[str, Any] = {"sigma": 0.5, "radius": 0.5, "n": 100_000, "alpha": 0.001, "futility": 0.01}


def test_a_clear_image_costs_the_logarithm_over_the_information() -> None:
    p0 = float(special.ndtr(1.0))
    information = 0.95 * math.log(0.95 / p0) + 0.05 * math.log(0.05 / (1 - p0))
    assert least_samples(0.95, None, **ASK) == pytest.approx(math.log(1000) / information)


def test_giving_up_costs_more_the_nearer_the_radius_is_and_never_more_than_n() -> None:
    found = least_samples(np.array([0.5, 0.7, 0.8, 0.83, 0.8413, 0.845, 0.86, 0.9, 0.99]), None, **ASK)
    assert (found <= ASK["n"]).all()
    peak = int(found.argmax())
    assert (np.diff(found[: peak + 1]) > 0).all()
    assert (np.diff(found[peak:]) < 0).all()


def test_a_weak_runner_up_makes_a_decision_cheaper() -> None:
    alone = least_samples(0.87, None, **ASK)
    assert least_samples(0.87, 0.03, **ASK) < least_samples(0.87, 0.12, **ASK) <= alone


@pytest.mark.parametrize("bound", ["top", "two"])
def test_many_votes_leave_little_open(bound: str) -> None:
    runner_up = None if bound == "top" else 40_000
    p_b = None if bound == "top" else 0.04
    found = least_samples_of_votes(950_000, runner_up, 1_000_000, **ASK)
    assert found == pytest.approx(float(least_samples(0.95, p_b, **ASK)), rel=0.02)
