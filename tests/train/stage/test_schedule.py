"""Learning rate, epochs and radius over a stage."""

import math

import pytest
from robust.train import Recipe
from robust.train.stage.schedule import cosine_learning_rate, decay_learning_rate, ramped_delta, stage_cost


def test_the_learning_rate_falls_from_its_maximum_to_zero_as_the_paper_says() -> None:
    assert cosine_learning_rate(0.3, 0) == 0.3
    assert cosine_learning_rate(0.3, 0.5) == pytest.approx(0.15)
    assert cosine_learning_rate(0.3, 1) == pytest.approx(0, abs=1e-16)
    assert cosine_learning_rate(0.01, 0.25) == pytest.approx(0.5 * 0.01 * (1 + math.cos(0.25 * math.pi)))


def test_a_rate_may_stay_after_a_warm_up_and_fall_over_the_last_quarter() -> None:
    assert decay_learning_rate(0.5, 0, 0) == pytest.approx(0.01)
    assert decay_learning_rate(0.5, 0.02, 24) == pytest.approx(0.25)
    assert [decay_learning_rate(0.5, fraction, 100) for fraction in (0.1, 0.5, 0.75)] == [0.5] * 3
    assert decay_learning_rate(0.5, 0.9, 100) == pytest.approx(0.2)
    assert decay_learning_rate(0.5, 1, 100) == 0


@pytest.mark.parametrize(
    ("first", "growth", "expected"),
    [(5, 2.0, [5, 10, 20, 40, 80]), (10, 2.0, [10, 20, 40, 80, 160]), (4, 1.0, [4] * 5), (2, 1.5, [2, 3, 4, 7, 10])],
)
def test_epochs_of_the_stages(first: int, growth: float, expected: list[int]) -> None:
    """N_t = 2^(t-1) N_1 with the paper's growth of 2."""
    recipe = Recipe(epochs=first, growth=growth)
    assert [recipe.stage_epochs(stage) for stage in range(1, 6)] == expected


def test_the_radius_grows_only_for_a_member_from_random_weights() -> None:
    recipe = Recipe(delta=0.3, ramp=2)
    assert [ramped_delta(recipe, epoch, fresh=True) for epoch in (0, 1, 2, 3)] == pytest.approx([0, 0.15, 0.3, 0.3])
    assert ramped_delta(recipe, 0, fresh=False) == 0.3
    assert ramped_delta(Recipe(delta=0.3), 0, fresh=True) == 0.3


def test_the_estimate_counts_frozen_members_only_where_they_run() -> None:
    costs = {previous: stage_cost(Recipe(previous=previous, growth=1, epochs=1), 3) for previous in ("clean", "exact")}
    assert costs["clean"] == 1
    assert costs["exact"] > 2
    assert stage_cost(Recipe(booster="independent", previous="exact", growth=1, epochs=1), 3) == 1
    # Of three passes in a step, a kept perturbation adds the two of each frozen member, and none of an attack.
    kept = Recipe(attack="kept", previous="exact", growth=1, epochs=6)
    assert [stage_cost(kept, stage) for stage in (1, 2, 3)] == pytest.approx([6, 10, 14])
