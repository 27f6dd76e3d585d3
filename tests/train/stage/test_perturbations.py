"""Perturbations kept from epoch to epoch: they climb, stay in their ball, and survive a kill."""

import dataclasses
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from robust.train import Recipe, train
from robust.train.data.batches import Batch
from robust.train.data.datasets import load_data
from robust.train.machine.processes import Processes
from robust.train.stage.perturbations import Perturbations, check_perturbations
from robust.train.stage.trainer import StageTrainer

from robustinfer.errors import RecipeError, TrainingError

DATA = load_data("digits", root="data")
ONE = Processes(torch.device("cpu"))


@pytest.fixture
def kept(tiny: Recipe) -> Recipe:
    return tiny.replace(
        attack="kept",
        norm="l2",
        delta=0.5,
        sigma=0.25,
        smoothing="softmax",
        steps=1,
        step_scale=0.5,
        select="last",
        epochs=2,
        growth=1.0,
    )


def one_step(perturbations: Perturbations, batch: Batch, slope: torch.Tensor, delta: float) -> Batch:
    """A step on the loss sum(slope * x), whose supremum over the ball is known."""
    started = perturbations.start(batch, delta)
    assert started.kept is not None
    (slope * started.kept).sum().backward()
    perturbations.move(started, delta)
    return started


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_they_reach_the_worst_point_of_a_linear_loss_step_by_step(norm: str) -> None:
    recipe = Recipe(attack="kept", norm=norm, delta=0.2, steps=1, step_scale=0.5)
    perturbations = Perturbations(recipe, DATA)
    numbers = torch.tensor([7, 3])
    batch = Batch(torch.full((2, 1, 8, 8), 0.5), torch.zeros(2, dtype=torch.int64), numbers=numbers)
    slope = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    lengths = []
    for _ in range(4):
        one_step(perturbations, batch, slope, 0.2)
        z = perturbations.kept[numbers].float()
        lengths.append(float(z[0].norm() if norm == "l2" else z[0].abs().max()))
    assert lengths == pytest.approx([0.1, 0.2, 0.2, 0.2], rel=1e-2)  # half precision
    direction = slope / slope.flatten(1).norm(dim=1).view(2, 1, 1, 1) if norm == "l2" else slope.sign()
    torch.testing.assert_close(z, 0.2 * direction, rtol=0, atol=1e-3)
    assert perturbations.kept.abs().sum(dim=(1, 2, 3)).count_nonzero() == 2  # of no other image


def test_a_smaller_radius_draws_them_in_and_none_at_all_leaves_the_image(kept: Recipe) -> None:
    perturbations = Perturbations(kept, DATA)
    batch = Batch(torch.full((1, 1, 8, 8), 0.5), torch.zeros(1, dtype=torch.int64), numbers=torch.tensor([0]))
    slope = torch.ones(1, 1, 8, 8)
    for _ in range(3):
        one_step(perturbations, batch, slope, 0.5)
    started = perturbations.start(batch, 0.1)
    assert started.kept is not None
    assert float((started.kept - batch.image).detach().norm()) == pytest.approx(0.1, rel=1e-3)
    assert perturbations.start(batch, 0.0).kept is None


def test_training_moves_every_image_it_sees_and_stays_in_the_ball(
    kept: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers: list[StageTrainer] = []

    def facts(self: StageTrainer) -> dict[str, Any]:
        trainers.append(self)
        return {}

    monkeypatch.setattr(StageTrainer, "facts", facts)
    train(kept, tmp_path / "run", device="cpu")
    assert [trainer.number for trainer in trainers] == [1, 2]
    for trainer in trainers:
        assert trainer.perturbations is not None
        lengths = trainer.perturbations.kept.float().flatten(1).norm(dim=1)
        assert int((lengths > 0).sum()) >= trainer.batches.steps * kept.batch  # those of one epoch of whole batches
        assert float(lengths.max()) <= kept.delta * 1.001


@pytest.mark.parametrize("stop", [1, 4])
def test_a_resumed_training_is_the_uninterrupted_one(
    kept: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    recipe = kept.replace(epochs=2, stages=1, checkpoint_seconds=0.0)
    whole = train(recipe, tmp_path / "whole", device="cpu")
    calls: list[None] = []
    update = StageTrainer.update

    def killed(self: StageTrainer) -> torch.Tensor:
        if len(calls) == stop:
            raise KeyboardInterrupt
        calls.append(None)
        return update(self)

    monkeypatch.setattr(StageTrainer, "update", killed)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "resumed", device="cpu")
    monkeypatch.setattr(StageTrainer, "update", update)
    resumed = train(recipe, tmp_path / "resumed", device="cpu", resume=True)
    assert resumed.stages[0].digest == whole.stages[0].digest


def test_the_second_epoch_is_attacked(kept: Recipe, tmp_path: Path) -> None:
    """On a member with a strided first layer: the weights are not those of a training without an attack."""
    images = torch.randint(0, 256, (40, 16, 16, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    np.savez(tmp_path / "data.npz", x_train=images.numpy(), y_train=np.arange(40) % 2)
    recipe = kept.replace(data=f"npz:{tmp_path / 'data.npz'}", architecture="cnn7-norm", batch=16, stages=1, limit=0)
    recipe = recipe.replace(width=0.125, refit=False, betas="trained")
    digests = {
        attack: train(recipe.replace(attack=attack), tmp_path / attack, device="cpu").stages[0].digest
        for attack in ("kept", "none", "pgd")
    }
    assert len(set(digests.values())) == 3


@pytest.mark.parametrize("booster", ["minimax", "independent"])
def test_other_boosters_keep_perturbations_as_well(kept: Recipe, tmp_path: Path, booster: str) -> None:
    recipe = kept.replace(booster=booster, stages=1, smoothing="none", sigma=0.0, delta=0.05, epochs=6, width=0.5)
    recipe = recipe.replace(limit=0, refit=False, betas="trained")
    assert len(train(recipe, tmp_path / "run", device="cpu").stages) == 1


def test_a_stage_of_one_epoch_is_refused(kept: Recipe) -> None:
    with pytest.raises(RecipeError, match="a stage of one epoch would meet none"):
        kept.replace(growth=0.5)


def test_what_cannot_be_kept_leaves_no_folder_behind(
    kept: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robust.train.stage.perturbations._MOST_BYTES", 1)
    with pytest.raises(RecipeError, match="GiB allowed"):
        train(kept, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_the_disk_must_hold_them(kept: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 10**6
    monkeypatch.setattr("shutil.disk_usage", lambda _: types.SimpleNamespace(free=free))
    train(kept.replace(attack="none", stages=1), tmp_path / "small", device="cpu")
    monkeypatch.setattr("robust.train.training.perturbation_bytes", lambda *_: free)
    with pytest.raises(TrainingError, match="only 1 MB are free"):
        train(kept, tmp_path / "large", device="cpu")


def test_several_processes_and_too_many_images_are_refused(kept: Recipe) -> None:
    with pytest.raises(RecipeError, match="in one process"):
        check_perturbations(kept, DATA, dataclasses.replace(ONE, world=2))

    class Huge:
        input = DATA.input

        def __len__(self) -> int:
            return 10**9

    with pytest.raises(RecipeError, match=r"119\.2 GiB for the perturbations of 1000000000 images"):
        check_perturbations(kept, Huge(), ONE)  # type: ignore[arg-type]
