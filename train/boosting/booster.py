"""Algorithm 1: greedy stagewise adversarial boosting, as a loop one can read; and members trained apart, to compare.

The same loop serves every booster; a booster decides what a stage starts from, which objective it descends, what it
sees of the past, and which betas the ensemble has after it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..attacks.accuracy import Accuracy, PgdAttack, measure
from ..data.datasets import ImageData
from ..machine.arithmetic import arithmetic
from ..machine.processes import Processes
from ..machine.randomness import derive_seed
from ..members import Member
from ..members.ensemble import Ensemble
from ..recipe import Recipe
from ..runs.checkpoint import Checkpoint
from ..runs.journal import Journal
from ..runs.run import Run
from ..stage.confidence import soft_targets
from ..stage.diagnostics import edge, stage_warnings, summarise
from ..stage.objective import Objective, StageModel
from ..stage.registry import make_objective
from ..stage.trainer import StageTrainer
from .betas import refit_betas, without_vanished

__all__ = ["Booster", "GreedyBooster", "IndependentBooster", "Settlement"]

_DIAGNOSED_IMAGES = 1000
_REFITTED_IMAGES = 2000


@dataclass(frozen=True)
class Settlement:
    """What a booster settles after a stage: the betas of members 1 to t, and what it found about the new member."""

    betas: list[float]
    facts: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[dict[str, str], ...] = ()


class Booster(ABC):
    """Trains the stages of a run that are not there yet."""

    stage_trainer: ClassVar[type[StageTrainer]] = StageTrainer  # the inner loop; schedules of other kinds are measured

    def __init__(
        self, run: Run, *, data: ImageData, held_out: ImageData, processes: Processes, journal: Journal
    ) -> None:
        self.run, self.data, self.held_out = run, data, held_out
        self.processes, self.journal = processes, journal
        self.recipe: Recipe = run.recipe

    def fit(self) -> None:
        """For t = 1 to T: train {w_t, beta_t} on the robust loss of f^(t-1) + beta f_w, then add them to f."""
        checkpoint = Checkpoint.load(self.run.path)
        for number in range(len(self.run.stages) + 1, self.recipe.stages + 1):
            trainer = self._trainer(number)
            if checkpoint is not None and checkpoint.stage == number:
                trainer.restore(checkpoint)
                checkpoint = None  # it may be large
            self.journal.rewind(number, trainer.epoch, trainer.step)
            trainer.fit()
            trainer.save()
            self.processes.leave_if_asked()
            self._finish(trainer)
        if self.processes.first:
            Checkpoint.clear(self.run.path)

    @abstractmethod
    def past(self, number: int) -> Ensemble | None:
        """f^(t-1) as the stage's objective sees it, frozen; None for nothing."""

    @abstractmethod
    def starts_fresh(self, number: int) -> bool:
        """Whether the member of this stage starts from random parameters."""

    @abstractmethod
    def settle(self, trainer: StageTrainer) -> Settlement:
        """The betas of all members, 1 to t, after this stage."""

    @property
    def learns_beta(self) -> bool:
        """Whether beta is trained together with the member."""
        return True

    @property
    def precision(self) -> Callable[[], AbstractContextManager[object]]:
        """The arithmetic of the passes of an objective."""
        return arithmetic(self.recipe, self.processes.device)

    def objective(self, model: StageModel, past: Ensemble | None) -> Objective:
        """What the next stage descends, complete."""
        recipe, device = self.recipe, self.processes.device
        targets = soft_targets(recipe, past, self.data, device) if recipe.smoothing == "cat-rs" else None
        return make_objective(recipe, model, past, targets=targets, precision=self.precision)

    def _trainer(self, number: int) -> StageTrainer:
        past, fresh = self.past(number), self.starts_fresh(number)
        device = self.processes.device
        model = StageModel(
            self._first_member(number, fresh=fresh),
            beta=1.0,
            previous=torch.zeros(0) if past is None else past.betas.cpu(),
            corrective=self.recipe.betas == "corrective" and self.learns_beta,
            learn_beta=self.learns_beta,
        )
        return self.stage_trainer(
            self.objective(model.to(device), past),
            number,
            data=self.data,
            held_out=self.held_out,
            processes=self.processes,
            journal=self.journal,
            folder=self.run.path,
            fresh=fresh and self.run.start is None,
        )

    def _first_member(self, number: int, *, fresh: bool) -> Member:
        if fresh:
            mean, std = self.data.moments()
            member = self.run.first_member(seed=derive_seed(self.recipe.seed, number), mean=mean, std=std)
        else:
            member = self.run.member(number - 1)
        return self.run.grafted(member) if self.recipe.shares_trunk and number > 1 else member

    def _finish(self, trainer: StageTrainer) -> None:
        """f^(t) = f^(t-1) + beta_t f_wt: settle the betas, measure, warn, write the stage."""
        number, member = trainer.number, trainer.member
        settled = self.settle(trainer)
        betas = settled.betas
        attack, seed = PgdAttack.of(self.recipe), (self.recipe.seed, number)
        whole = self._accuracy(self._ensemble(member, betas), attack, (*seed, 1))
        alone = self._accuracy(member, attack, (*seed, 1))
        images = self.data.head(_DIAGNOSED_IMAGES)
        gamma = edge(
            member,
            trainer.past,
            images,
            attack,
            processes=self.processes,
            seed=(*seed, 3),
            balance=self.recipe.balance,
        )
        warnings = [*settled.warnings, *stage_warnings(number, gamma=gamma, ensemble=whole, member=alone)]
        for found in warnings:
            self.journal.watcher.warn(found)
        if self.processes.first:
            self.run.add_stage(
                number,
                member,
                betas=betas,
                seconds=trainer.seconds,
                metrics={**summarise(gamma, whole, alone), **trainer.facts(), **settled.facts},
                warnings=trainer.warnings + warnings,
            )
        self.processes.wait()

    def _ensemble(self, member: Member, betas: list[float]) -> Ensemble:
        """The ensemble of the finished members and the new one, without those whose beta is 0."""
        kept = [number for number, beta in enumerate(betas, start=1) if beta != 0]
        members = [member if number == len(betas) else self.run.member(number) for number in kept]
        return Ensemble(members, [betas[number - 1] for number in kept]).to(self.processes.device)

    def _accuracy(self, scores: Callable[[Tensor], Tensor], attack: PgdAttack, seed: tuple[int, ...]) -> Accuracy:
        classes = len(self.run.classes)
        return measure(scores, self.held_out, attack, classes=classes, processes=self.processes, seed=seed)


class GreedyBooster(Booster):
    """The paper: each stage trains its member against the frozen members before it."""

    def past(self, number: int) -> Ensemble | None:
        return self.run.ensemble(number - 1, self.processes.device) if number > 1 else None

    def starts_fresh(self, number: int) -> bool:
        return number == 1 or not self.recipe.warm_start

    def settle(self, trainer: StageTrainer) -> Settlement:
        number, recipe, device = trainer.number, self.recipe, self.processes.device
        kept = [*(self.run.kept(number - 1) if number > 1 else ()), number]
        betas = trainer.model.betas
        betas[-1] *= recipe.shrinkage
        members = [*(trainer.past.members if trainer.past is not None else ()), trainer.member]
        ensemble = Ensemble(members, betas).to(device)
        if recipe.refit:
            images = self.data.head(_REFITTED_IMAGES)
            attack = PgdAttack.of(recipe)
            seed = (recipe.seed, number, 4)
            betas = refit_betas(ensemble, images, attack, device=device, seed=seed, balance=recipe.balance)
        if recipe.drop_below:
            betas = without_vanished(ensemble, betas, self.data, recipe.drop_below, device)
        betas = self.processes.agree(torch.tensor(betas, dtype=torch.float64, device=device)).tolist()
        return Settlement([betas[kept.index(stage)] if stage in kept else 0.0 for stage in range(1, number + 1)])


class IndependentBooster(Booster):
    """The baseline: members that know nothing of each other, averaged."""

    def past(self, number: int) -> Ensemble | None:
        return None

    def starts_fresh(self, number: int) -> bool:
        return True

    @property
    def learns_beta(self) -> bool:
        return False

    def settle(self, trainer: StageTrainer) -> Settlement:
        return Settlement([1 / trainer.number] * trainer.number)
