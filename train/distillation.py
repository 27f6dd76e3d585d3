"""Distillation: one network of a member's size learns to give the scores of a whole ensemble, under the same threat.

The student is trained as a member is, with the same attack and noise, but on the ensemble's own answers: with f the
ensemble and s the student, its loss is sup over z in the ball of KL(softmax(f(x + noise)/tau) | softmax(s(x + z +
noise)/tau)) tau^2. The ensemble is asked at the unperturbed image, so the student learns to give under attack what the
ensemble gives without one. A vote h_Q is a distribution already, and is taken as it is.

The student is a run of one stage: it is exported, evaluated, certified and served like any other.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from robustinfer.errors import ArgumentError, RunError
from robustinfer.files import write_text

from .boosting.booster import IndependentBooster
from .data.batches import Batch
from .data.datasets import ImageData
from .evaluation.evaluation import EvaluationOptions, Row, evaluate_run
from .machine.randomness import Draws
from .members.ensemble import Ensemble
from .members.votes import VoteEnsemble
from .recipe import Recipe
from .runs.journal import Watcher
from .runs.run import Run
from .stage.objective import Objective, StageModel, weighted_mean
from .training import train

__all__ = [
    "Compared",
    "Comparison",
    "DistillationBooster",
    "DistillationObjective",
    "compare",
    "distill",
    "student_recipe",
]

_FILE = "distillation.json"
_TIMED_IMAGES = 512


class DistillationObjective(Objective):
    """The divergence of the student from its teacher; where labels stand in other objectives, here are answers."""

    def __init__(
        self,
        recipe: Recipe,
        model: StageModel,
        *,
        teacher: Ensemble,
        temperature: float,
        precision: Callable[[], AbstractContextManager[object]],
    ) -> None:
        super().__init__(recipe, model, None, precision=precision)
        self.teacher, self.temperature = teacher, temperature

    def loss(self, batch: Batch, *, draws: Draws, delta: float, steps: int, model: nn.Module | None = None) -> Tensor:
        noise = self._noise(batch, draws)
        with torch.no_grad(), self.precision():
            answers = self._answers(self._points(batch.image, noise), len(batch.labels))
        soft = dataclasses.replace(batch, labels=answers)
        x = self.attack(soft, noise=noise, offsets=None, draws=draws, delta=delta, steps=steps)
        with self.precision():
            _, scores = (model or self.model)(self._points(x, noise), None)
        return weighted_mean(self._example_loss(scores, answers), batch)

    def _answers(self, points: Tensor, images: int) -> Tensor:
        """The teacher's distribution over classes for each image, one for each noisy copy or one for their mean."""
        scores = self.teacher(points).float().view(self.copies, images, -1)
        if self.recipe.smoothing in ("none", "scores"):
            scores = scores.mean(dim=0, keepdim=True)
        votes = isinstance(self.teacher, VoteEnsemble)
        return (scores if votes else functional.softmax(scores / self.temperature, dim=2)).transpose(0, 1)

    def _example_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The cross-entropy against the teacher's answers: the divergence, but for a constant."""
        rows, tau = scores.view(self.copies, len(labels), -1), self.temperature
        if self.recipe.smoothing == "gaussian":
            each = functional.log_softmax(rows / tau, dim=2).transpose(0, 1)
            return -tau * tau * (labels * each).sum(dim=2).mean(dim=1)
        if self.recipe.smoothing == "softmax":
            mean = functional.log_softmax(rows / tau, dim=2).logsumexp(dim=0) - math.log(self.copies)
        else:
            mean = functional.log_softmax(rows.mean(dim=0) / tau, dim=1)
        return -tau * tau * (labels.mean(dim=1) * mean).sum(dim=1)


class DistillationBooster(IndependentBooster):
    """One stage, whose member learns from the teacher. What it learns from is written beside it."""

    def __init__(self, run: Run, *, teacher: Run, temperature: float, **parts: Any) -> None:
        super().__init__(run, **parts)
        self.teacher, self.temperature = teacher, temperature
        facts = {
            "teacher": teacher.recipe.name,
            "members": [stage.digest for stage in teacher.stages],
            "temperature": temperature,
        }
        file = run.path / _FILE
        if file.is_file() and json.loads(file.read_text(encoding="utf-8")) != facts:
            raise RunError(f"{run.path} is a student of another teacher or temperature; give another --out.")
        if self.processes.first:
            write_text(file, json.dumps(facts, indent=2) + "\n")

    def objective(self, model: StageModel, past: Ensemble | None) -> Objective:
        teacher = self.teacher.ensemble(device=self.processes.device)
        return DistillationObjective(
            self.recipe, model, teacher=teacher, temperature=self.temperature, precision=self.precision
        )


def distill(
    run: Run,
    out: str | Path,
    *,
    epochs: int | None = None,
    temperature: float = 1.0,
    root: str | Path = "data",
    data: str | None = None,
    resume: bool = False,
    device: str = "auto",
    watcher: Watcher | None = None,
    stop: Callable[[], bool] | None = None,
) -> Run:
    """Train a student of the run's ensemble into the run folder `out`, on the run's data set or on `data`.

    It has the run's recipe but for boosting, and by default as many epochs as all stages of the run had together.
    """
    if not run.stages:
        raise RunError(f"{run.path} has no finished stage yet, so there is nothing to learn from: train it first.")
    if not temperature > 0:
        raise ArgumentError(f"Expected a temperature above 0, found {temperature!r}.")
    recipe = student_recipe(run, epochs=epochs)
    recipe = recipe if data is None else recipe.replace(data=data)
    booster = partial(DistillationBooster, teacher=run, temperature=temperature)
    return train(recipe, out, root=root, resume=resume, device=device, watcher=watcher, stop=stop, booster=booster)


def student_recipe(run: Run, *, epochs: int | None = None) -> Recipe:
    """The recipe of a student: one stage, started afresh."""
    smoothing = (
        "gaussian" if run.recipe.smoothing == "cat-rs" else run.recipe.smoothing
    )  # its targets are the ensemble's
    total = sum(run.recipe.stage_epochs(stage.number) for stage in run.stages)
    return run.recipe.replace(
        name=f"{run.recipe.name}-student",
        description=f"one member distilled from the ensemble {run.recipe.name}",
        booster="independent",
        stages=1,
        epochs=total if epochs is None else epochs,
        growth=1.0,
        own_loss=0.0,
        smoothing=smoothing,
        teacher="",
    )


@dataclass(frozen=True)
class Compared:
    """One of the two: what was measured of it, and what it costs."""

    name: str
    members: int
    parameters: int
    seconds_per_thousand: float
    row: Row

    def to_json(self) -> dict[str, Any]:
        """The figures as a JSON object."""
        return {
            "name": self.name,
            "members": self.members,
            "parameters": self.parameters,
            "seconds_per_thousand": self.seconds_per_thousand,
            **self.row.to_json(),
        }


@dataclass(frozen=True)
class Comparison:
    """The ensemble and its student on the same test images, attacks and noise."""

    ensemble: Compared
    student: Compared

    def to_json(self) -> dict[str, Any]:
        """Both as one JSON object."""
        return {"ensemble": self.ensemble.to_json(), "student": self.student.to_json()}


def compare(run: Run, student: Run, data: ImageData, options: EvaluationOptions, *, device: torch.device) -> Comparison:
    """Clean, robust and certified accuracy and cost of the ensemble and of its student."""
    options = dataclasses.replace(options, prefixes=False)
    return Comparison(*(_measured(one, data, options, device) for one in (run, student)))


def _measured(run: Run, data: ImageData, options: EvaluationOptions, device: torch.device) -> Compared:
    row = evaluate_run(run, data, options, device=device).rows[0]
    ensemble = run.ensemble(device=device)
    parameters = sum(parameter.numel() for parameter in ensemble.parameters())
    return Compared(run.recipe.name, len(ensemble.members), parameters, _seconds(ensemble, run, device), row)


def _seconds(ensemble: Ensemble, run: Run, device: torch.device) -> float:
    """Seconds for the scores of a thousand images: the best of five, which other programs have disturbed least."""
    images, times = torch.zeros(_TIMED_IMAGES, *run.input.shape, device=device), []
    with torch.inference_mode():
        for _ in range(5):
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            begun = time.perf_counter()
            ensemble(images).sum().item()
            times.append(time.perf_counter() - begun)
    return min(times) * 1000 / _TIMED_IMAGES
