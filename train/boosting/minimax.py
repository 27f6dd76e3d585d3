"""Minimax boosting: Theorem robust-boosting by regret minimisation, with neural networks as the weak learner.

Over stages, the booster keeps a distribution over the training examples, or over incorrect example/label pairs; the
weak learner trains a member on the robust loss weighted by it; the robust losses of the member are computed by attack;
the distribution is shifted to where the member failed; and the member gets the weight that the analysis gives
(`theory/reweighting.py`). The ensemble is the weighted plurality vote.

The losses of a member are kept in the run folder (`losses-NN.safetensors`): all distributions follow from them.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from robustinfer.errors import RunError, TrainingError

from ..attacks.accuracy import PgdAttack
from ..data.batches import Batch, as_pixels
from ..machine.randomness import Draws
from ..members import Member
from ..members.ensemble import Ensemble
from ..members.votes import VoteEnsemble
from ..runs.run import save_tensors
from ..stage.diagnostics import warning
from ..stage.objective import Objective
from ..stage.trainer import StageTrainer
from ..theory import (
    PgdChecker,
    Reweighting,
    find_weak_member,
    fixed_rate,
    incorrect_pairs,
    ova_loss,
    robust_loss,
    vote_loss,
)
from .booster import Booster

__all__ = ["MinimaxBooster", "MinimaxTrainer"]

_BATCH = 500


class WeightedObjective(Objective):
    """The surrogate of a member's error under the booster's distribution D, by Lemma surrogate.

    Over examples: E_D of the robust cross-entropy, which bounds err_delta^ova(h, D). Over pairs: l_delta is
    1[some z gives y'] + 1[some z gives another label than y] - 1, and y' wins only where f_y' >= f_y; so, as in the
    lemma, l_delta <= (softplus(f_y' - f_y) + cross-entropy) / ln 2 - 1 with suprema over the ball, and the objective is
    E_D of half their sum. The attack is that on the cross-entropy, one search an example
    (a kept perturbation climbs the objective itself).

    `weights` are D times the number of examples, of shape (examples,) or (examples, classes).
    """

    weights: Tensor

    def loss(self, batch: Batch, *, draws: Draws, delta: float, steps: int, model: nn.Module | None = None) -> Tensor:
        assert batch.numbers is not None
        noise = self._noise(batch, draws)
        x = self.attack(batch, noise=noise, offsets=None, draws=draws, delta=delta, steps=steps)
        with self.precision():
            _, scores = (model or self.model)(self._points(x, noise), None)
        losses = self._example_loss(scores, batch.labels)
        weights = self.weights[batch.numbers.to(self.weights.device)].to(losses)
        if weights.ndim == 1:
            return (weights * losses).mean()
        mean = scores.view(self.copies, len(batch.labels), -1).mean(dim=0)
        pairs = functional.softplus(mean - mean.gather(1, batch.labels[:, None]))
        return (weights * (pairs + losses[:, None]) / 2).sum(dim=1).mean()


class MinimaxTrainer(StageTrainer):
    """Trains one member on the booster's distribution."""

    def _prepare(self) -> None:
        super()._prepare()
        self.objective = WeightedObjective(self.recipe, self.model, None, precision=self.objective.precision)
        self.found: dict[str, Any] = {}

    def weigh(self, distribution: Tensor) -> None:
        """Train on this distribution, which sums to 1."""
        assert isinstance(self.objective, WeightedObjective)
        self.objective.weights = (distribution * len(self.data)).float()

    def facts(self) -> dict[str, Any]:
        return super().facts() | self.found


class MinimaxBooster(Booster):
    """Members are unilabel predictors, trained on a distribution that follows the failures of those before."""

    trainer_type = MinimaxTrainer

    def past(self, number: int) -> Ensemble | None:
        return None

    def starts_fresh(self, number: int) -> bool:
        return number == 1 or not self.recipe.warm_start

    @property
    def learns_beta(self) -> bool:
        return False

    def _trainer(self, number: int) -> StageTrainer:
        trainer = super()._trainer(number)
        assert isinstance(trainer, MinimaxTrainer)
        trainer.weigh(self._game(number - 1).distribution)
        return trainer

    def _ensemble(self, member: Member, betas: list[float]) -> Ensemble:
        whole = super()._ensemble(member, betas)
        return VoteEnsemble(list(whole.members), whole.betas).to(self.processes.device)

    def betas(self, trainer: StageTrainer) -> list[float]:
        """Q after this stage; what was found about the member goes into the stage's document."""
        assert isinstance(trainer, MinimaxTrainer)
        number = trainer.number
        losses = self._losses(trainer.member, number)
        if self.processes.first:
            save_tensors(self._file(number), {"losses": losses.to(torch.int8)})
        self.processes.wait()
        game = self._game(number)
        self._judge(trainer, game)
        weights = game.vote_weights
        margins = -vote_loss(torch.stack([self._stored(stage) for stage in range(1, number + 1)]), weights)
        margins = margins.masked_fill(~self._support(), 1.0).view(len(self.data), -1).amin(dim=1)
        trainer.found = {
            "edge": game.edges[-1],
            "reweigh": self.recipe.reweigh,
            "rate": self.recipe.rate,
            "largest_loss_bound": game.bound,
            "smallest_margin": float(margins.min()),
            # Examples whose vote no perturbation changes, if the attacks on the members overlooked nothing.
            "training_robust_by_margin": float((margins > 0).double().mean()),
        }
        return [float(weight) for weight in weights]

    def _judge(self, trainer: MinimaxTrainer, game: Reweighting) -> None:
        """Lemma apx-weak-learner with this one candidate: warn, or give up, if it has no edge."""
        number, edge = trainer.number, game.edges[-1]
        if self.recipe.reweigh == "examples":
            before = self._game(number - 1).distribution
            failed = self._stored(number) > 0
            weak = find_weak_member([trainer.member], lambda member: failed, before, gamma=1e-9) is not None
        else:
            weak = edge > 0
        if weak:
            return
        message = (
            f"The member of stage {number} is no weak learner: its edge on the distribution over {self.recipe.reweigh} "
            f"is {edge:.3f}, and boosting needs a positive one."
        )
        if not sum(game.weights) > 0:
            raise TrainingError(
                f"{message} Train longer, lower delta, take larger members, or set "
                'reweigh = "pairs", which asks for less.'
            )
        trainer.warnings.append(warning("no-weak-learner", message))

    def _losses(self, member: Member, number: int) -> Tensor:
        """The robust losses of a member on all training examples, as far as the attack finds them."""
        targeted = self.recipe.reweigh == "pairs"
        classes, device = len(self.run.classes), self.processes.device
        reached = torch.zeros(len(self.data), classes, dtype=torch.int32, device=device)
        for block, start in enumerate(range(0, len(self.data), _BATCH)):
            if block % self.processes.world != self.processes.rank:
                continue
            numbers = torch.arange(start, min(start + _BATCH, len(self.data)))
            image, labels = as_pixels(self.data.take(numbers), device), self.data.labels[numbers].to(device)
            seed = (self.recipe.seed, number, 5, block)
            checker = PgdChecker(PgdAttack.of(self.recipe), seed=seed, targeted=targeted)
            reached[start : start + _BATCH] = checker.reached(member, image, labels).int()
        found = self.processes.sum(reached).bool().cpu()
        return robust_loss(found, self.data.labels) if targeted else ova_loss(found, self.data.labels)

    def _game(self, stages: int) -> Reweighting:
        """The booster after so many stages, from the losses in the run folder."""
        support = self._support()
        rate = fixed_rate(int(support.sum()), self.recipe.stages) if self.recipe.rate == "fixed" else None
        game = Reweighting(support, rate=rate)
        for stage in range(1, stages + 1):
            game.update(self._stored(stage))
        return game

    def _support(self) -> Tensor:
        if self.recipe.reweigh == "pairs":
            return incorrect_pairs(self.data.labels, len(self.run.classes))
        return torch.ones(len(self.data), dtype=torch.bool)

    def _file(self, stage: int) -> Path:
        return self.run.path / f"losses-{stage:02d}.safetensors"

    def _stored(self, stage: int) -> Tensor:
        file = self._file(stage)
        try:
            losses = load_file(file)["losses"].double()
        except (OSError, SafetensorError, KeyError) as error:
            raise RunError(
                f"{file} is missing or damaged, and the weights of the examples with it: {error}."
            ) from error
        expected = tuple(self._support().shape)
        if losses.shape != expected:
            raise RunError(f"{file} holds losses of shape {tuple(losses.shape)}; expected {expected}.")
        return losses
