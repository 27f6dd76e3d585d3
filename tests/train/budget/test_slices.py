"""The schedule that can be cut anywhere: its rates, and that a decay leaves no trace."""

from pathlib import Path

import pytest
import torch
from robust.train import Recipe, Run
from robust.train.budget import Budget, BudgetBooster, budgeted
from robust.train.budget.slices import SliceTrainer, decay_share
from robust.train.data.datasets import load_data
from robust.train.machine.processes import Processes
from robust.train.runs.journal import Journal


def part_of(recipe: Recipe, folder: Path) -> SliceTrainer:
    whole = load_data("digits")
    data, held_out = whole.head(128), whole.head(20)
    run = Run.create(folder, budgeted(recipe), classes=whole.classes, input=whole.input, provenance={})
    booster = BudgetBooster(
        run,
        budget=Budget(1e6, "operations"),
        data=data,
        held_out=held_out,
        processes=Processes(torch.device("cpu")),
        journal=Journal(folder, write=False),
    )
    return booster._begin("member")


def test_rates_rise_stay_and_fall_and_the_fall_is_undone(tiny: Recipe, tmp_path: Path) -> None:
    recipe = tiny.replace(select="last", attack="none")
    part = part_of(recipe, tmp_path / "run")
    rate = recipe.learning_rate
    assert part.learning_rate() == pytest.approx(rate / 50)
    for _ in range(3):
        part._step()
        part.taken += 1
    part.taken = 500
    assert part.learning_rate() == rate
    before = {name: tensor.clone() for name, tensor in part.model.state_dict().items()}
    place, rates = (part.epoch, part.step), []
    update = part.update

    def watched() -> torch.Tensor:
        rates.append(part.learning_rate())
        return update()

    part.update = watched  # type: ignore[method-assign]
    with part.decayed(3):
        assert any(not torch.equal(before[name], tensor) for name, tensor in part.model.state_dict().items())
        assert not part.model.training
    assert rates == pytest.approx([0.75 * rate, 0.5 * rate, 0.25 * rate])
    assert all(torch.equal(before[name], tensor) for name, tensor in part.model.state_dict().items())
    assert (part.epoch, part.step) == place
    assert part.learning_rate() == rate


def test_a_decay_is_short_until_the_last_slice_which_decays_over_a_quarter_of_the_whole() -> None:
    assert decay_share(36.0, before=64.0, last=False) == 0.1
    assert decay_share(36.0, before=64.0, last=True) * 36 == pytest.approx(25)
    assert decay_share(100.0, before=0.0, last=True) == 0.25
    assert decay_share(1.0, before=99.0, last=True) == 0.8, "some of the slice is left at the full rate"
    assert decay_share(0.0, before=0.0, last=True) == 0.25, "a budget that was gone before the first step"


def test_a_decay_moves_no_perturbation_that_training_continues_from(tiny: Recipe, tmp_path: Path) -> None:
    part = part_of(tiny.replace(select="last", attack="kept", augment="none", steps=1, epochs=4), tmp_path / "run")
    assert part.perturbations is not None
    part._step()
    before = part.perturbations.kept.clone()
    with part.decayed(2):
        assert not torch.equal(before, part.perturbations.kept)
    assert torch.equal(before, part.perturbations.kept)
