"""Distillation: the student learns the ensemble's answers, and is a run like any other."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from robust.train import Recipe, Run, train
from robust.train.data.batches import Batch
from robust.train.data.datasets import load_data
from robust.train.distillation import DistillationObjective, compare, distill, student_recipe
from robust.train.evaluation.evaluation import EvaluationOptions
from robust.train.machine.randomness import Draws
from robust.train.members.ensemble import Ensemble
from robust.train.members.votes import VoteEnsemble
from robust.train.stage.objective import StageModel
from torch import Tensor, nn
from typer.testing import CliRunner

from robustinfer.cli.main import app
from robustinfer.errors import ArgumentError, RunError

CPU = torch.device("cpu")


def linear(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def objective(student: nn.Module, teacher: Ensemble, tau: float = 1.0, **changes: Any) -> DistillationObjective:
    fields = {"delta": 0.0, **changes}
    recipe = Recipe(norm="l2" if "smoothing" in changes else "linf", **fields)
    model = StageModel(student, beta=1.0, previous=torch.zeros(0), corrective=False, learn_beta=False)
    return DistillationObjective(recipe, model, teacher=teacher.freeze(), temperature=tau, precision=nullcontext)


def divergence(made: DistillationObjective, image: Tensor) -> float:
    batch = Batch(image, torch.zeros(len(image), dtype=torch.int64))
    return float(made.loss(batch, draws=Draws(1), delta=made.recipe.delta, steps=3).detach())


def entropy(teacher: Ensemble, image: Tensor, tau: float) -> float:
    probabilities = torch.softmax(teacher(image) / tau, dim=1)
    return float(-(probabilities * probabilities.log()).sum(dim=1).mean() * tau * tau)


@pytest.mark.parametrize("tau", [1.0, 4.0])
def test_the_loss_is_least_for_a_student_that_answers_alike(tau: float) -> None:
    """The cross-entropy of equal distributions is the entropy, and any other student has more."""
    image, member = torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(0)), linear(0)
    teacher = Ensemble([member], [1.0])
    alike, other = (divergence(objective(one, teacher, tau), image) for one in (member, linear(1)))
    assert alike == pytest.approx(entropy(teacher, image, tau), rel=1e-5)
    assert other > alike + 1e-3


@pytest.mark.parametrize("smoothing", ["scores", "softmax", "gaussian"])
def test_noise_is_the_same_for_both(smoothing: str) -> None:
    """A student that equals its teacher is no worse than the entropy of what the teacher says on noise."""
    image, member = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0)), linear(0)
    fields: dict[str, Any] = {"smoothing": smoothing, "sigma": 0.5, "noise_samples": 3}
    teacher = Ensemble([member], [1.0])
    alike, other = (divergence(objective(one, teacher, **fields), image) for one in (member, linear(3)))
    assert other > alike > 0


def test_the_attack_makes_the_student_worse() -> None:
    image, member = torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(0)), linear(0)
    teacher = Ensemble([member], [1.0])
    clean, attacked = (divergence(objective(member, teacher, delta=delta), image) for delta in (0.0, 0.1))
    assert attacked > clean + 1e-2


def test_votes_are_answers_as_they_are() -> None:
    image, members = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0)), [linear(0), linear(1)]
    teacher = VoteEnsemble(members, [0.6, 0.4])
    made = objective(linear(2), teacher, tau=3.0)
    with torch.no_grad():
        assert torch.allclose(made._answers(image, 6)[:, 0], teacher(image))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Run:
    fields = {"stages": 2, "epochs": 2, "growth": 1.0, "width": 0.5, "limit": 800, "batch": 32, "steps": 2}
    recipe = Recipe.load("digits-l2").replace(**fields, delta=0.1, learning_rate=0.01)
    return train(recipe, tmp_path_factory.mktemp("runs") / "teacher", device="cpu")


def test_a_student_is_a_run_that_learnt_from_the_ensemble(teacher: Run, tmp_path: Path) -> None:
    student = distill(teacher, tmp_path / "student", device="cpu")
    assert student.recipe == student_recipe(teacher)
    assert student.recipe.epochs == 4
    assert len(student.ensemble().members) == 1
    facts = json.loads((student.path / "distillation.json").read_text())
    assert facts["members"] == [stage.digest for stage in teacher.stages]
    data = load_data("digits", split="test").head(60)
    found = compare(teacher, student, data, EvaluationOptions(steps=3, restarts=1, n=200), device=CPU)
    assert found.student.row.clean.value > 0.7
    assert found.student.row.robust is not None
    assert found.student.row.certified is not None
    assert found.student.row.certified["average_radius"] > 0.05
    assert 2 * found.student.parameters == found.ensemble.parameters
    assert json.loads(json.dumps(found.to_json()))["student"]["members"] == 1


def test_the_command_reports_both_side_by_side(teacher: Run, tmp_path: Path) -> None:
    out, few = str(tmp_path / "student"), ["--epochs", "1", "--images", "20", "--restarts", "1", "--n", "100"]
    words = ["distill", str(teacher.path), "--out", out, *few]
    found = json.loads(CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False).stdout)
    assert (found["ensemble"]["members"], found["student"]["members"]) == (2, 1)
    table = CliRunner().invoke(app, [*words, "--resume"], catch_exceptions=False).stdout
    assert [line.split()[0] for line in table.splitlines()] == ["members", "ensemble", "student"]


def test_refusals(teacher: Run, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="temperature"):
        distill(teacher, tmp_path / "student", temperature=0.0)
    empty = Run.create(
        tmp_path / "empty", teacher.recipe, classes=teacher.classes, input=teacher.input, provenance={"data_digest": ""}
    )
    with pytest.raises(RunError, match="nothing to learn from"):
        distill(empty, tmp_path / "student")
    distill(teacher, tmp_path / "student", epochs=1, device="cpu")
    with pytest.raises(RunError, match="another teacher"):
        distill(teacher, tmp_path / "student", epochs=1, temperature=2.0, resume=True, device="cpu")
