"""Fields of a recipe that only its steps show."""

import math
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from robust.train import Recipe, Run
from robust.train.data.datasets import load_data
from robust.train.machine.processes import Processes
from robust.train.runs.journal import Journal
from robust.train.stage.objective import Objective, StageModel
from robust.train.stage.trainer import StageTrainer


def trainer_of(recipe: Recipe, folder: Path) -> StageTrainer:
    data = load_data("digits").head(recipe.batch)
    member = Run(folder, recipe, data.classes, data.input).fresh_member(seed=0)
    model = StageModel(member, beta=1.0, previous=torch.zeros(0), corrective=False, learn_beta=True).train()
    return StageTrainer(
        Objective(recipe, model, None, precision=nullcontext),
        1,
        data=data,
        held_out=data,
        processes=Processes(torch.device("cpu")),
        journal=Journal(folder, write=False),
        folder=folder,
        fresh=True,
    )


def moved(recipe: Recipe, folder: Path) -> float:
    """How far one step moves all parameters together."""
    trainer = trainer_of(recipe, folder)
    before = torch.cat([parameter.detach().flatten().clone() for parameter in trainer.model.parameters()])
    trainer.update()
    after = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
    return float((after.double() - before.double()).norm())


def test_clip_bounds_the_length_of_a_step(tiny: Recipe, tmp_path: Path) -> None:
    """Plain gradient descent moves by learning_rate times the gradient, whose norm is `clip` once it is clipped."""
    plain = tiny.replace(optimizer="sgd", momentum=0.0, learning_rate=0.5)
    assert moved(plain, tmp_path) > 0.5 * 0.1
    assert moved(plain.replace(clip=0.1), tmp_path) == pytest.approx(0.5 * 0.1, rel=1e-3)


def test_the_schedule_decides_the_rate_of_each_step(tiny: Recipe, tmp_path: Path) -> None:
    """After a tenth, a third and five sixths of a stage, the warm-up of 50 steps behind it."""
    rates: dict[str, list[float]] = {}
    for schedule in ("cosine", "decay"):
        trainer = trainer_of(tiny.replace(schedule=schedule, epochs=600, learning_rate=0.5), tmp_path)
        for trainer.epoch in (60, 200, 500):
            trainer.update()
            rates.setdefault(schedule, []).append(trainer.optimizer.param_groups[0]["lr"] / 0.5)
    assert rates["cosine"] == pytest.approx([(1 + math.cos(math.pi * part)) / 2 for part in (1 / 10, 1 / 3, 5 / 6)])
    assert rates["decay"] == pytest.approx([1, 1, 2 / 3])
