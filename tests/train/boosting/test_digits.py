"""What the digits recipes promise, with their default options: boosting gains, and the ensemble beats its parts."""

from pathlib import Path
from statistics import fmean

import pytest
import torch
from robust.train import Recipe, train
from robust.train.evaluation.evaluation import EvaluationOptions, evaluate_run, load_test_images


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("name", "seeds"),
    [("digits-linf", [0]), ("digits-l2", [0, 1, 2])],
)
def test_boosting_beats_its_first_stage_and_its_last_member(name: str, seeds: list[int], tmp_path: Path) -> None:
    """Ten points over one member trained for the epochs of the first stage, which is what the first stage is.

    Measured on all test images under PGD-20 with two restarts; more restarts change the figures by less than a point.
    The gain of digits-l2 was 9 to 17 points over four seeds, and one seed gave 11 points on one processor and 9 on
    another, which rounds otherwise: there the promise is about the mean of three.
    """
    gains = []
    for seed in seeds:
        run = train(Recipe.load(name).replace(seed=seed), tmp_path / f"run-{seed}", device="cpu")
        options = EvaluationOptions(restarts=2, n=500, certify=name == "digits-l2")
        result = evaluate_run(run, load_test_images(None, "digits"), options, device=torch.device("cpu"))
        first, *_, ensemble, last = result.rows
        assert first.robust is not None
        assert ensemble.robust is not None
        assert last.robust is not None
        gains.append(ensemble.robust.value - first.robust.value)
        assert ensemble.robust.interval[1] >= last.robust.value
        if ensemble.certified is not None and first.certified is not None:
            assert ensemble.certified["average_radius"] > first.certified["average_radius"]
            assert ensemble.certified["accuracy"][1]["rate"] >= 0.75, "certified at l2 radius 0.25"
    assert fmean(gains) >= 0.10, gains
