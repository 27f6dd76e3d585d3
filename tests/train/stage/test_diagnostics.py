"""The edge of a member on examples counted by hand, the warnings, and the guard against catastrophic overfitting."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from robust.train import Recipe, Run, train
from robust.train.attacks.accuracy import Accuracy, PgdAttack
from robust.train.data.batches import as_pixels
from robust.train.data.datasets import ImageData, load_data
from robust.train.data.pixels import TensorPixels
from robust.train.machine.processes import Processes
from robust.train.runs.journal import Journal, Silent
from robust.train.stage.diagnostics import edge, stage_warnings
from robust.train.stage.objective import Objective, StageModel
from robust.train.stage.trainer import StageTrainer
from torch import Tensor

DOCS = Path(__file__).parents[3] / "docs" / "training.md"
CPU = Processes(torch.device("cpu"))
ATTACK = PgdAttack(norm="linf", delta=0.1, steps=5)


@pytest.fixture
def four_pixels() -> ImageData:
    """Pixels 0.2, 0.45, 0.7 of class 0, 0, 1 and 0.3 of class 1."""
    pixels = torch.tensor([51, 115, 179, 77], dtype=torch.uint8).view(-1, 1, 1, 1)
    return ImageData("pixels", TensorPixels(pixels), torch.tensor([0, 0, 1, 1]), ("dark", "bright"))


def threshold(image: Tensor) -> Tensor:
    """Class 1 above one half."""
    x = image.flatten(1)[:, 0]
    return torch.stack([torch.full_like(x, 0.5), x], dim=1)


def test_the_edge_of_the_first_member_is_one_minus_twice_its_robust_error(four_pixels: ImageData) -> None:
    """At delta 0.1 the threshold keeps 0.2 and 0.7, loses 0.45, and is wrong about 0.3: two of four."""
    found = edge(threshold, None, four_pixels, ATTACK, processes=CPU, seed=(0,))
    assert found == pytest.approx(0)
    clean = edge(threshold, None, four_pixels, PgdAttack(norm="linf", delta=0.0), processes=CPU, seed=(0,))
    assert clean == pytest.approx(0.5)


def test_later_members_are_judged_on_what_the_ensemble_gets_wrong(four_pixels: ImageData) -> None:
    """A past that is sure and right about three leaves the weight on the fourth, which the threshold fails."""

    def past(image: Tensor) -> Tensor:
        x = image.flatten(1)[:, 0]
        score = torch.where(x > 0.58, 20.0, -20.0) + 0 * x
        return torch.stack([-score, score], dim=1)

    assert edge(threshold, past, four_pixels, ATTACK, processes=CPU, seed=(0,)) == pytest.approx(-1, abs=1e-6)


def test_every_warning_is_given_when_it_should_and_explained() -> None:
    good = Accuracy(images=100, clean=90, robust=70, predicted=(50, 50))
    constant = Accuracy(images=100, clean=50, robust=50, predicted=(100, 0))
    assert stage_warnings(2, gamma=0.1, ensemble=good, member=good) == []
    found = stage_warnings(2, gamma=-0.1, ensemble=Accuracy(100, 80, 40, (50, 50)), member=constant)
    assert [warning["code"] for warning in found] == ["no-weak-learner", "one-class-only", "worse-than-last-member"]
    slightly = Accuracy(images=100, clean=90, robust=67, predicted=(50, 50))
    assert stage_warnings(2, gamma=0.1, ensemble=slightly, member=good) == [], "within one standard error"
    anchors = DOCS.read_text(encoding="utf-8")
    for code in ("no-weak-learner", "one-class-only", "worse-than-last-member", "catastrophic-overfitting"):
        assert f"\n### {code}\n" in anchors


def test_the_guard_goes_back_and_takes_two_steps(tiny: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The robust training accuracy is made to fall from 80 % to 30 % in the second epoch of a one-step training."""
    recipe = tiny.replace(attack="n-fgsm", steps=1, stages=1, epochs=3, select="last", betas="trained", refit=False)
    original, measured, weights = StageTrainer.accuracy, [0.8, 0.3, 0.9], []
    warnings: list[str] = []

    def accuracy(self: StageTrainer, data: ImageData, attack: PgdAttack, *, purpose: int) -> Accuracy:
        if purpose == 2:
            weights.append({name: tensor.clone() for name, tensor in self.model.state_dict().items()})
            return Accuracy(100, 90, round(100 * measured[len(weights) - 1]), (10,) * 10)
        return original(self, data, attack, purpose=purpose)

    class Watcher(Silent):
        def warn(self, warning: object) -> None:
            assert isinstance(warning, dict)
            warnings.append(warning["code"])
            if warning["code"] == "catastrophic-overfitting":
                state = trainers[0].model.state_dict()
                assert all(torch.equal(state[name], weights[0][name]) for name in state), "back to the good weights"

    trainers: list[StageTrainer] = []
    prepare = StageTrainer._prepare

    def prepared(self: StageTrainer) -> Any:
        trainers.append(self)
        return prepare(self)

    monkeypatch.setattr(StageTrainer, "_prepare", prepared)
    monkeypatch.setattr(StageTrainer, "accuracy", accuracy)
    run = train(recipe, tmp_path / "run", device="cpu", watcher=Watcher())
    assert "catastrophic-overfitting" in warnings
    assert len(weights) == 2, "with two steps the guard has done its work"
    assert run.stages[0].metrics["attack_steps"] == 2
    assert run.stages[0].warnings[0]["code"] == "catastrophic-overfitting"


def test_the_first_stage_is_measured_with_its_weight(tiny: Recipe, tmp_path: Path) -> None:
    """A trained weight may turn negative: the smallest score of the member is then the largest of the model."""
    data = load_data("digits").head(300)
    run = Run(tmp_path, tiny, data.classes, data.input)
    member = run.fresh_member(seed=0).eval()
    scores = member(as_pixels(data.take(torch.arange(len(data))), CPU.device))
    for beta, expected in ((1.0, scores.argmax(dim=1)), (-1.0, scores.argmin(dim=1))):
        model = StageModel(member, beta=beta, previous=torch.zeros(0), corrective=False, learn_beta=True).eval()
        journal = Journal(tmp_path, write=False)
        parts: dict[str, Any] = {"data": data, "held_out": data, "processes": CPU, "folder": tmp_path}
        trainer = StageTrainer(
            Objective(tiny, model, None, precision=nullcontext), 1, **parts, journal=journal, fresh=True
        )
        found = trainer.accuracy(data, PgdAttack.of(tiny), purpose=1)
        assert found.predicted == tuple(torch.bincount(expected, minlength=10).tolist())
        assert found.clean == int((expected == data.labels).sum())


def test_nan_stops_the_training_with_a_sentence(tiny: Recipe, tmp_path: Path) -> None:
    from robustinfer.errors import TrainingError

    with pytest.raises(TrainingError, match="no longer a number in epoch 1: lower learning_rate"):
        train(tiny.replace(optimizer="sgd", learning_rate=1e20), tmp_path / "run", device="cpu")
