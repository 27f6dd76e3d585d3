"""Decisions about images like the published ones: few stand for many, and are drawn again on a real scheduler."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robustinfer import Card, InputSpec, Predictor

sys.path.append(str(Path(__file__).parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.drawn import RADII, Decision, decisions, run_decisions, typical

CARD = Card(classes=tuple("0123456789"), input=InputSpec(1, 2, 2), sigma=0.25)
IMAGE = np.full((1, 2, 2), 100, dtype=np.uint8)


class Indifferent:
    """An engine whose own votes would decide nothing: every class has its turn."""

    name, device, batch = "indifferent", "cpu", 64

    def __init__(self) -> None:
        self.samples = 0

    def scores(self, images: Any) -> Any:
        self.samples += len(images)
        return np.eye(10, dtype=np.float32)[np.arange(len(images)) % 10]


@pytest.fixture(scope="module")
def found() -> list[Decision]:
    return decisions(CARD, IMAGE, images=30, seed=0)


def test_every_radius_is_decided_for_every_image(found: list[Decision]) -> None:
    assert len(found) == 30 * sum(map(len, RADII.values()))
    asked = {round(float(one.question.requested or 0) / 0.25, 6) for one in found}  # in units of sigma
    assert asked == {round(radius / sigma, 6) for sigma, radii in RADII.items() for radius in radii}


def test_a_few_cost_as_much_as_all_on_average(found: list[Decision]) -> None:
    sizes = [len(one.labels) for one in found]
    chosen = [len(one.labels) for one in typical(found, 30)]
    assert np.mean(chosen) == pytest.approx(np.mean(sizes), rel=0.15)
    assert chosen == sorted(chosen)


def test_drawn_again_a_decision_takes_the_samples_that_it_took(found: list[Decision]) -> None:
    engine = Indifferent()
    predictor = Predictor(engine, CARD, digest="sha256:indifferent", threads=1)
    cheap = [one for one in found if len(one.labels) < 2000][:40]
    assert run_decisions(predictor, cheap) == sum(len(one.labels) for one in cheap) == engine.samples
