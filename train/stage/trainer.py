"""One stage of boosting: train a member and its beta on the robust loss, from its first step or from a checkpoint."""

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robustinfer.errors import StoppedError, TrainingError

from ..attacks.accuracy import Accuracy, PgdAttack, measure
from ..attacks.pgd import frozen
from ..data.batches import Batch, Batches, in_order
from ..data.datasets import ImageData
from ..machine.processes import Processes
from ..machine.randomness import Draws
from ..members import Member
from ..recipe import Recipe
from ..runs.checkpoint import Checkpoint, flatten_optimizer, prefixed, restore_optimizer
from ..runs.journal import Journal
from .diagnostics import warning
from .objective import Objective
from .optimizer import make_optimizer
from .perturbations import Perturbations
from .schedule import cosine_learning_rate, decay_learning_rate, ramped_delta

__all__ = ["StageTrainer"]

_LOG_STEPS = 20
_GUARD_IMAGES = 500
_OFFSET_COPIES = 16  # noise vectors a cached smoothed offset is averaged over
_OFFSET_BYTES = 2**30
_NEVER = 1_000_000  # key of the random streams that belong to no epoch


@dataclass
class _Snapshot:
    """Parameters worth returning to, and the accuracy they had."""

    accuracy: float = -1.0
    tensors: dict[str, Tensor] = field(default_factory=dict)


class StageTrainer:
    """The inner loop of Algorithm 1: descends `objective` on the model that the objective is of.

    `fresh` says that the member starts from random parameters. The caller has checked the recipe against the data and
    the machine (`stage.checks`).
    """

    def __init__(
        self,
        objective: Objective,
        number: int,
        *,
        data: ImageData,
        held_out: ImageData,
        processes: Processes,
        journal: Journal,
        folder: Path,
        fresh: bool,
    ) -> None:
        recipe: Recipe = objective.recipe
        self.objective, self.recipe, self.number = objective, recipe, number
        self.model, self.past = objective.model, objective.past
        self.data, self.held_out = data, held_out.head(recipe.validation_images)
        self.processes, self.journal, self.folder, self.fresh = processes, journal, folder, fresh
        self.epochs = recipe.stage_epochs(number)
        self.epoch = self.step = 0
        self.seconds = 0.0
        self.attack_steps = 1 if recipe.attack in ("n-fgsm", "kept") else recipe.steps
        self.warnings: list[dict[str, str]] = []
        self.losses: list[Tensor] = []  # of the epoch so far
        self.good, self.best = _Snapshot(), _Snapshot()
        self._prepare()

    def _prepare(self) -> None:
        recipe = self.recipe
        if recipe.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if recipe.compile:
            self.model.member.compile()
            for member in self.past.members if self.past is not None else ():
                member.compile()
        self.batches = Batches(recipe, self.number, self.data, self.processes)
        self.optimizer = make_optimizer(recipe, self.model)
        self.wrapped = self.processes.wrap(self.model)
        self.perturbations = Perturbations(recipe, self.data) if recipe.keeps_perturbations else None

    @property
    def member(self) -> Member:
        """The member this stage trains."""
        assert isinstance(self.model.member, Member)
        return self.model.member

    def facts(self) -> dict[str, Any]:
        """How the stage was trained, for its JSON document."""
        return {"epochs": self.epochs, "attack_steps": self.attack_steps, "delta": self.recipe.delta}

    def fit(self) -> None:
        """Train to the end of the stage, or until somebody asks for a stop: then the checkpoint is of that moment."""
        try:
            self._fit()
        except StoppedError:
            self.save()
            raise

    def _fit(self) -> None:
        self.batches.offsets = self.cached_offsets()
        self.journal.watcher.stage(self.number, self.epochs, self.batches.steps)
        begun, saved = time.monotonic() - self.seconds, time.monotonic()
        self.model.train()
        while self.epoch < self.epochs:
            while self.step < self.batches.steps:
                self.losses.append(self.update())
                self.step += 1
                self.seconds = time.monotonic() - begun
                if self.step % _LOG_STEPS == 0:
                    self._log()
                # Saving is a collective, and clocks differ: the first process decides for all.
                due = time.monotonic() - saved >= self.recipe.checkpoint_seconds
                if self.processes.decide(due or self.processes.stop()):
                    self.processes.leave_if_asked()
                    self.save()
                    saved = time.monotonic()
            self._end_epoch()
            self.seconds = time.monotonic() - begun
        if self.best.tensors:
            self.model.load_state_dict(self.best.tensors)
        self.model.eval()

    def learning_rate(self) -> float:
        """The rate of the next step."""
        maximum, steps = self.recipe.learning_rate, self.batches.steps
        done = self.epoch * steps + self.step
        fraction = done / (self.epochs * steps)
        if self.recipe.schedule == "decay":
            return decay_learning_rate(maximum, fraction, done)
        return cosine_learning_rate(maximum, fraction)

    def update(self) -> Tensor:
        """One gradient step on {w_t, beta_t}; the loss stays on the device."""
        rate = self.learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        loss, batch, delta = self.loss_of(self.epoch, self.step)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.recipe.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimizer.step()
        if self.perturbations is not None:
            self.perturbations.move(batch, delta)
        return loss.detach()

    def loss_of(self, epoch: int, step: int) -> tuple[Tensor, Batch, float]:
        """The loss of a step, its batch and its radius."""
        delta = ramped_delta(self.recipe, epoch + step / self.batches.steps, fresh=self.fresh)
        batch, draws = self.batches.batch(epoch, step), self.batches.draws(epoch, step)
        if self.perturbations is not None:
            batch = self.perturbations.start(batch, delta)
        loss = self.objective.loss(batch, draws=draws, delta=delta, steps=self.attack_steps, model=self.wrapped)
        return loss, batch, delta

    def _end_epoch(self) -> None:
        self._check_finite()
        self.model.eval()
        self._guard()
        accuracy = self.accuracy(self.held_out, PgdAttack.of(self.recipe), purpose=1)
        # What is chosen is chosen as it is trained: by classes that count alike, or by images that do.
        judged = accuracy.robust_accuracy if self.recipe.balance == "none" else accuracy.balanced_accuracy
        if self.recipe.select == "best" and judged > self.best.accuracy:
            self.best = _Snapshot(judged, _clone(self.model.state_dict()))
        record = self._record(self.losses)
        self.epoch, self.step, self.losses = self.epoch + 1, 0, []
        measured = {
            "clean_accuracy": accuracy.clean_accuracy,
            "robust_accuracy": accuracy.robust_accuracy,
            "beta": self.model.betas[-1],
        }
        self.journal.epoch(record | measured)
        self.model.train()

    def accuracy(self, data: ImageData, attack: PgdAttack, *, purpose: int) -> Accuracy:
        """The accuracy of f^(t-1) + beta f_w with the model in evaluation mode; in the first stage of beta f_w.

        Beta counts there, too: a trained one may be negative, and then f_w alone errs where the model is right.
        """

        def scores(x: Tensor) -> Tensor:
            return self.model.combine(self.model.member(x), None if self.past is None else self.past.stacked(x))

        seed = (self.recipe.seed, self.number, self.epoch, _NEVER + purpose)
        classes = len(data.classes)
        with frozen(self.model):  # an attack needs no gradients of the parameters
            return measure(scores, data, attack, classes=classes, processes=self.processes, seed=seed)

    def _guard(self) -> None:
        """Catastrophic overfitting of one-step attacks: return to the last good parameters and take two steps from now.

        It shows on the training set: the accuracy under a real attack falls while that under one step stays (Wong et
        al. 2020 watch one batch in the same way, and stop).
        """
        if self.attack_steps > 1 or not self.recipe.guard or not self.recipe.attacked or self.perturbations is not None:
            return
        accuracy = self.accuracy(self.data.head(_GUARD_IMAGES), PgdAttack.of(self.recipe), purpose=2).robust_accuracy
        if accuracy < self.good.accuracy - self.recipe.guard:
            self.model.load_state_dict(self.good.tensors)
            self.attack_steps = 2
            self.optimizer.state.clear()  # its moments belong to the parameters that were given up
            message = (
                f"Stage {self.number} overfitted to its one-step attack (robust training accuracy fell from "
                f"{self.good.accuracy:.0%} to {accuracy:.0%}); it returned to its last good "
                "parameters and takes two steps from now on."
            )
            self.warnings.append(warning("catastrophic-overfitting", message))
            self.journal.watcher.warn(self.warnings[-1])
        elif accuracy >= self.good.accuracy:
            self.good = _Snapshot(accuracy, _clone(self.model.state_dict()))

    def cached_offsets(self) -> Tensor | None:
        """f_s(x_i) of each frozen member for all training images: eq. (adv-greedy) needs no more of the past.

        Not with augmentation, where the image of a step is not x_i: then they are computed with the step.
        """
        recipe, past = self.recipe, self.past
        if past is None or recipe.previous == "exact" or recipe.augment != "none":
            return None
        if 4 * len(past.members) * len(self.data) * len(self.data.classes) > _OFFSET_BYTES:
            return None
        parts = []
        device = self.processes.device  # every process needs all of them: each computes them alone
        for number, batch in in_order(self.data, recipe.batch, Processes(device), channels_last=recipe.channels_last):
            draws = Draws(recipe.seed, self.number, _NEVER, number, device=device)
            with torch.no_grad():
                if not recipe.smoothed:
                    parts.append(past.stacked(batch.image).cpu())
                    continue
                noise = (recipe.training_sigma * draws.normal(batch.image.shape) for _ in range(_OFFSET_COPIES))
                parts.append(torch.stack([past.stacked(batch.image + z) for z in noise]).mean(dim=0).cpu())
        return torch.cat(parts, dim=1)

    def _log(self) -> None:
        record = self._record(self.losses[-_LOG_STEPS:])
        self.journal.step(record, self.epoch + self.step / self.batches.steps)

    def _record(self, losses: list[Tensor]) -> dict[str, Any]:
        fraction = self.epoch + self.step / self.batches.steps
        before = sum(self.recipe.stage_epochs(number) for number in range(1, self.number))
        return {
            "stage": self.number,
            "epoch": self.epoch,
            "step": self.step,
            "images": round((before + fraction) * self.batches.steps) * self.recipe.batch,
            "loss": self._mean(losses),
            "learning_rate": self.learning_rate(),
            "seconds": self.seconds,
        }

    def _mean(self, losses: list[Tensor]) -> float:
        """The mean loss over all processes."""
        if not losses:
            return math.nan
        return float(self.processes.sum(torch.stack(losses).mean()) / self.processes.world)

    def _check_finite(self) -> None:
        if self.losses and not math.isfinite(self._mean(self.losses)):
            raise TrainingError(
                f"The loss of stage {self.number} is no longer a number in epoch {self.epoch + 1}: "
                "lower learning_rate or set clip, and train again."
            )

    def save(self) -> None:
        """Write the checkpoint of this moment."""
        self._check_finite()
        if not self.processes.first:
            return
        tensors = {
            **prefixed("model", self.model.state_dict()),
            **prefixed("optimizer", flatten_optimizer(self.optimizer)),
            **prefixed("good", self.good.tensors),
            **prefixed("best", self.best.tensors),
        }
        if self.perturbations is not None:
            tensors["perturbations.kept"] = self.perturbations.kept
        Checkpoint(self.number, self.epoch, self.step, self.state(), tensors).save(self.folder)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds besides tensors."""
        return {
            "seconds": self.seconds,
            "attack_steps": self.attack_steps,
            "warnings": self.warnings,
            "good": self.good.accuracy,
            "best": self.best.accuracy,
            "losses": [float(loss) for loss in self.losses],
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint of this stage."""
        self.model.load_state_dict(checkpoint.part("model"))
        restore_optimizer(self.optimizer, checkpoint.part("optimizer"))
        self.epoch, self.step = checkpoint.epoch, checkpoint.step
        state = checkpoint.state
        self.seconds, self.attack_steps = state["seconds"], state["attack_steps"]
        self.warnings = list(state["warnings"])
        self.losses = list(torch.tensor(state["losses"], device=self.processes.device))
        self.good = _Snapshot(state["good"], checkpoint.part("good"))
        self.best = _Snapshot(state["best"], checkpoint.part("best"))
        if self.perturbations is not None:
            self.perturbations.kept = checkpoint.part("perturbations")["kept"]


def _clone(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
