"""The schedule that can be cut anywhere: its rates, its means, and that neither mean nor decay leaves a trace."""

import dataclasses
from pathlib import Path

import pytest
import torch
from robust.train import Recipe, Run
from robust.train.budget import Budget, BudgetBooster, Purse, budgeted
from robust.train.budget.slices import SliceTrainer, last_share
from robust.train.data.datasets import load_data
from robust.train.machine.processes import Processes
from robust.train.runs.journal import Journal

from robustinfer.errors import StoppedError


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


def test_the_share_of_a_slice_is_a_quarter_of_all_its_part_has_cost() -> None:
    assert last_share(36.0, before=64.0) * 36 == pytest.approx(25)
    assert last_share(100.0, before=0.0) == 0.25
    assert last_share(1.0, before=99.0) == 0.8, "some of the slice lies before it"
    assert last_share(0.0, before=0.0) == 0.25, "a budget that was gone before the first step"


def test_a_mean_is_that_of_the_last_steps_with_statistics_of_its_own(tiny: Recipe, tmp_path: Path) -> None:
    """Against a plain mean of what the parameters were, and statistics as one batch after the other gives them."""
    part = part_of(tiny.replace(select="last", architecture="cnn7-norm", attack="none"), tmp_path / "run")
    seen: list[dict[str, torch.Tensor]] = []

    def look() -> None:
        seen.append({name: tensor.detach().clone() for name, tensor in part.model.named_parameters()})

    part._step()  # one step is as dear as any other
    step = part.purse.spent
    steps = part.advance(6.5 * step, look, mean_from=3.5 * step)
    assert steps == 7
    assert part.taken == 7
    before = {name: tensor.clone() for name, tensor in part.model.state_dict().items()}
    part._steps = 60  # as many as ask for three batches
    with part.averaged():
        for name, tensor in part.model.named_parameters():
            torch.testing.assert_close(tensor.detach(), torch.stack([one[name] for one in seen[3:]]).mean(dim=0))
        assert not part.model.training
        layer = next(one for one in part.model.modules() if isinstance(one, torch.nn.BatchNorm2d))
        assert layer.num_batches_tracked == 3
        met: list[torch.Tensor] = []
        hook = layer.register_forward_pre_hook(lambda module, inputs: met.append(inputs[0].mean(dim=(0, 2, 3))))
        with torch.no_grad():
            for number in range(3):
                place = part.step + number
                part.loss_of(part.epoch + place // part.batches.steps, place % part.batches.steps)
        hook.remove()
        torch.testing.assert_close(layer.running_mean, torch.stack(met).mean(dim=0))
    assert all(torch.equal(before[name], tensor) for name, tensor in part.model.state_dict().items())
    assert layer.momentum == 0.1


def test_a_decay_moves_no_perturbation_that_training_continues_from(tiny: Recipe, tmp_path: Path) -> None:
    fields = {"attack": "kept", "augment": "none", "steps": 1, "epochs": 4, "architecture": "cnn7-norm"}
    part = part_of(tiny.replace(select="last", **fields), tmp_path / "run")
    assert part.perturbations is not None
    part._step()
    before = part.perturbations.kept.clone()
    with part.decayed(2):
        assert not torch.equal(before, part.perturbations.kept)
    assert torch.equal(before, part.perturbations.kept)
    part.advance(1.0, lambda: None, mean_from=0.0)
    before, passes = part.perturbations.kept.clone(), []
    layer = next(one for one in part.model.modules() if isinstance(one, torch.nn.BatchNorm2d))
    layer.register_forward_hook(lambda *arguments: passes.append(1))
    with part.averaged():
        assert passes
        assert torch.equal(before, part.perturbations.kept), "passes for statistics move nothing"


def test_a_stalled_clock_leaves_a_mean(tiny: Recipe, tmp_path: Path) -> None:
    """However long a step or what comes between two of them takes, the last step belongs to the mean."""
    part = part_of(tiny.replace(select="last", attack="none"), tmp_path / "run")
    now = [0.0]
    part.purse = Purse(Budget(1e6), clock=lambda: now[0])

    def stall() -> None:
        now[0] += 3.0 if part.taken == 1 else 1000.0

    assert part.advance(10.0, stall, mean_from=7.5) == 3, "at 0, at 3 and at 1003 seconds"
    with part.averaged():
        assert all(torch.isfinite(one).all() for one in part.model.state_dict().values())


def test_a_step_with_an_attack_costs_more_than_those_before_the_radius_grows(tiny: Recipe, tmp_path: Path) -> None:
    part = part_of(tiny.replace(select="last", ramp=1.0, steps=3), tmp_path / "run")
    spent = []
    for _ in range(3):
        part._step()
        spent.append(part.purse.spent)
    first, later = spent[0], spent[1] - spent[0]
    assert spent[2] - spent[1] == later
    # A pass and its two backward ones; with three steps of an attack three passes there and back more.
    assert 2.5 * first < later < 4 * first


def test_what_is_interrupted_leaves_no_trace(tiny: Recipe, tmp_path: Path) -> None:
    part = part_of(tiny.replace(select="last", architecture="cnn7-norm", attack="none"), tmp_path / "run")
    part.advance(1.0, lambda: None, mean_from=0.0)
    before, rate = {name: one.clone() for name, one in part.model.state_dict().items()}, part.learning_rate()
    part.processes = dataclasses.replace(part.processes, stop=lambda: True)
    for context in (part.averaged(), part.decayed(2)):
        with pytest.raises(StoppedError), context:
            pytest.fail("the block is not reached")
    assert all(torch.equal(before[name], one) for name, one in part.model.state_dict().items())
    assert {one.momentum for one in part.model.modules() if isinstance(one, torch.nn.BatchNorm2d)} == {0.1}
    assert part.learning_rate() == rate
