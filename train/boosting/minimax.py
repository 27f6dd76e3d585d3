"""Minimax boosting: Theorem robust-boosting by regret minimisation, with neural networks as the weak learner.

Over stages, the booster keeps a distribution over the training examples, or over incorrect example/label pairs; the
weak learner trains a member on the robust loss weighted by it; the robust losses of the member are computed by attack;
the distribution is shifted to where the member failed; and the member gets the beta that the analysis gives
(`theory/reweighting.py`). The ensemble is the weighted plurality vote.

The losses of a member are kept in the run folder (`losses-NN.safetensors`): all distributions follow from them.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from robustinfer.errors import RunError, TrainingError

from ..attacks.accuracy import PgdAttack
from ..data.balance import image_weights
from ..data.batches import Batch, in_order
from ..machine.randomness import Draws
from ..members import Member
from ..members.ensemble import Ensemble
from ..members.votes import VoteEnsemble
from ..recipe import Recipe
from ..runs.run import save_tensors
from ..stage.diagnostics import warning
from ..stage.objective import Objective, StageModel
from ..stage.trainer import StageTrainer
from ..theory import (
    PgdChecker,
    Reweighting,
    effective_rows,
    find_weak_member,
    fixed_rate,
    incorrect_pairs,
    ova_loss,
    robust_loss,
    vote_loss,
)
from .booster import Booster, Settlement

__all__ = ["MinimaxBooster", "WeightedObjective"]

_BATCH = 500


class WeightedObjective(Objective):
    """The surrogate of a member's error under the booster's distribution D, by Lemma surrogate.

    Over examples: E_D of the robust cross-entropy, which bounds err_delta^ova(h, D). Over pairs: l_delta is
    1[some z gives y'] + 1[some z gives another label than y] - 1, and y' wins only where f_y' >= f_y; so, as in the
    lemma, l_delta <= (softplus(f_y' - f_y) + cross-entropy) / ln 2 - 1 with suprema over the ball, and the objective is
    E_D of half their sum. The attack is that on the cross-entropy, one search per example
    (a kept perturbation climbs the objective itself).

    `distribution` is D, of shape (examples,) or (examples, classes), and sums to 1. `draws` is how often an example
    comes, relative to once per epoch, where batches do not draw all equally often: the mean over a batch stays that of
    D. D has the balance of the classes in it (`MinimaxBooster`), so weights of the batch are not counted again.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: StageModel,
        *,
        distribution: Tensor,
        draws: Tensor | None = None,
        precision: Callable[[], AbstractContextManager[object]],
    ) -> None:
        super().__init__(recipe, model, None, precision=precision)
        density = distribution * len(distribution)  # relative to the uniform one over examples
        if draws is not None:
            density = density / draws.view(-1, *[1] * (density.ndim - 1))
        self.density = density.float()

    def loss(self, batch: Batch, *, draws: Draws, delta: float, steps: int, model: nn.Module | None = None) -> Tensor:
        assert batch.numbers is not None
        noise = self._noise(batch, draws)
        x = self.attack(batch, noise=noise, offsets=None, draws=draws, delta=delta, steps=steps)
        with self.precision():
            _, scores = (model or self.model)(self._points(x, noise), None)
        losses = self._example_loss(scores, batch.labels)
        density = self.density[batch.numbers.to(self.density.device)].to(losses)
        if density.ndim == 1:
            return (density * losses).mean()
        mean = scores.view(self.copies, len(batch.labels), -1).mean(dim=0)
        pairs = functional.softplus(mean - mean.gather(1, batch.labels[:, None]))
        return (density * (pairs + losses[:, None]) / 2).sum(dim=1).mean()


class MinimaxBooster(Booster):
    """Members are unilabel predictors, trained on a distribution that follows the failures of those before."""

    def past(self, number: int) -> Ensemble | None:
        return None

    def starts_fresh(self, number: int) -> bool:
        return number == 1 or not self.recipe.warm_start

    @property
    def learns_beta(self) -> bool:
        return False

    def objective(self, model: StageModel, past: Ensemble | None) -> Objective:
        """The member's error under the distribution that the finished stages have left."""
        distribution = self._game(len(self.run.stages)).distribution
        draws = self._weights() if self.recipe.balance == "sample" else None
        return WeightedObjective(self.recipe, model, distribution=distribution, draws=draws, precision=self.precision)

    def _ensemble(self, member: Member, betas: list[float]) -> Ensemble:
        whole = super()._ensemble(member, betas)
        return VoteEnsemble(list(whole.members), whole.betas).to(self.processes.device)

    def settle(self, trainer: StageTrainer) -> Settlement:
        """Q after this stage, the member's edge and the margins of the vote."""
        number = trainer.number
        losses = self._losses(trainer.member, number)
        if self.processes.first:
            save_tensors(self._file(number), {"losses": losses.to(torch.int8)})
        self.processes.wait()
        game = self._game(number)
        warnings = self._judge(trainer, game)
        betas = game.betas
        margins = -vote_loss(torch.stack([self._stored(stage) for stage in range(1, number + 1)]), betas)
        margins = margins.masked_fill(~self._support(), 1.0).view(len(self.data), -1).amin(dim=1)
        facts = {
            "edge": game.edges[-1],
            "reweigh": self.recipe.reweigh,
            "rate": self.recipe.rate,
            "largest_loss_bound": game.bound,
            "smallest_margin": float(margins.min()),
            # Examples whose vote no perturbation changes, if the attacks on the members overlooked nothing.
            "training_robust_by_margin": float((margins > 0).double().mean()),
        }
        return Settlement([float(beta) for beta in betas], facts, warnings)

    def _judge(self, trainer: StageTrainer, game: Reweighting) -> tuple[dict[str, str], ...]:
        """Lemma apx-weak-learner with this one candidate: warn, or give up, if it has no edge."""
        number, edge = trainer.number, game.edges[-1]
        if self.recipe.reweigh == "examples":
            before = self._game(number - 1).distribution
            failed = self._stored(number) > 0
            weak = find_weak_member([trainer.member], lambda member: failed, before, gamma=1e-9) is not None
        else:
            weak = edge > 0
        if weak:
            return ()
        message = (
            f"The member of stage {number} is not a weak learner: its edge on the distribution over "
            f"{self.recipe.reweigh} is {edge:.3f}, and boosting needs a positive one."
        )
        if not sum(game.etas) > 0:
            raise TrainingError(
                f"{message} Train longer, lower delta, take larger members, or set "
                'reweigh = "pairs", which asks for less.'
            )
        return (warning("no-weak-learner", message),)

    def _losses(self, member: Member, number: int) -> Tensor:
        """The robust losses of a member on all training examples, as far as the attack finds them."""
        targeted = self.recipe.reweigh == "pairs"
        classes, device = len(self.run.classes), self.processes.device
        reached = torch.zeros(len(self.data), classes, dtype=torch.int32, device=device)
        for block, batch in in_order(self.data, _BATCH, self.processes):
            seed = (self.recipe.seed, number, 5, block)
            checker = PgdChecker(PgdAttack.of(self.recipe), seed=seed, targeted=targeted)
            reached[batch.numbers] = checker.reached(member, batch.image, batch.labels).int()
        found = self.processes.sum(reached).bool().cpu()
        return robust_loss(found, self.data.labels) if targeted else ova_loss(found, self.data.labels)

    def _game(self, stages: int) -> Reweighting:
        """The booster after this many stages, from the losses in the run folder."""
        support, start = self._support(), self._start()
        rows = effective_rows(support, start)
        rate = fixed_rate(rows, self.recipe.stages) if self.recipe.rate == "fixed" else None
        game = Reweighting(support, rate=rate, start=start)
        for stage in range(1, stages + 1):
            game.update(self._stored(stage))
        return game

    def _support(self) -> Tensor:
        if self.recipe.reweigh == "pairs":
            return incorrect_pairs(self.data.labels, len(self.run.classes))
        return torch.ones(len(self.data), dtype=torch.bool)

    def _weights(self) -> Tensor | None:
        return image_weights(self.data.labels, len(self.run.classes), self.recipe.balance)

    def _start(self) -> Tensor | None:
        """The first distribution: uniform (None), or with every class equally likely if the recipe balances them."""
        weights, support = self._weights(), self._support()
        if weights is None:
            return None
        rows = support.double() * weights.view(-1, *[1] * (support.ndim - 1))
        return rows / rows.sum()

    def _file(self, stage: int) -> Path:
        return self.run.path / f"losses-{stage:02d}.safetensors"

    def _stored(self, stage: int) -> Tensor:
        file = self._file(stage)
        try:
            losses = load_file(file)["losses"].double()
        except (OSError, SafetensorError, KeyError) as error:
            raise RunError(
                f"{file} is missing or damaged, and the distribution over the examples with it: {error}."
            ) from error
        expected = tuple(self._support().shape)
        if losses.shape != expected:
            raise RunError(f"{file} holds losses of shape {tuple(losses.shape)}; expected {expected}.")
        return losses
