"""The objective of a stage: the robust cross-entropy of f^(t-1) + beta f_w, and where f^(t-1) is evaluated.

`previous` decides the last point, with z the perturbation that the attack finds:

* `clean`: eq. (adv-greedy), the paper's offset approximation: attack and loss see the constant f^(t-1)(x_i).
* `adversarial`: the attack of `clean`, but the loss sees f^(t-1)(x_i + z): one forward pass of the frozen members.
* `exact`: eq. (greedy-step): attack and loss see f^(t-1)(x_i + z).

With a smoothed recipe, scores are taken at m noisy copies of each point, the same noise in the attack and in the loss.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from ..attacks.balls import ball
from ..attacks.losses import consistency_loss, example_loss
from ..attacks.pgd import frozen, n_fgsm, pgd
from ..data.batches import Batch
from ..machine.randomness import Draws
from ..members.ensemble import Ensemble
from ..members.trunk import Trunk, shared_trunk
from ..recipe import Recipe

__all__ = ["Objective", "StageModel", "weighted_mean"]


def weighted_mean(losses: Tensor, batch: Batch) -> Tensor:
    """The mean of one loss per row, each counted by its weight.

    It is not divided by the weights of the batch: their mean is 1 over the training set, so that the gradient has the
    right expectation in every batch, and in every process's share of one.
    """
    return losses.mean() if batch.weights is None else (batch.weights * losses).mean()


class StageModel(nn.Module):
    """What a stage trains: the new member f_w, its beta, and with corrective betas those before it.

    With beta = 0 and f_w = 0, as the pseudo-code of the paper starts, both gradients vanish: beta multiplies the
    gradient of w, and f_w that of beta. Beta therefore starts at 1 and the member from the parameters of the one
    before (or from random ones), where neither gradient is zero.
    """

    def __init__(self, member: nn.Module, *, beta: float, previous: Tensor, corrective: bool, learn_beta: bool) -> None:
        super().__init__()
        self.member = member
        self.beta = nn.Parameter(torch.tensor(float(beta)), requires_grad=learn_beta)
        self.previous_betas = nn.Parameter(previous.detach().clone(), requires_grad=corrective and len(previous) > 0)

    def forward(self, image: Tensor, previous: Tensor | None, features: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The scores of f^(t-1) + beta f_w and of f_w alone; `previous` holds the frozen members' own scores.

        `features` are what the trunk of a head makes of the image, where it was passed already.
        """
        if features is None:
            own = self.member(image).float()
        else:
            assert isinstance(self.member.trunk, Trunk)
            own = self.member.trunk.scores(features).float()
        return self.combine(own, previous), own

    def combine(self, own: Tensor, previous: Tensor | None) -> Tensor:
        """f^(t-1) + beta f_w, from the scores of the new member and those of each frozen member."""
        new = self.beta * own
        return new if previous is None else new + torch.einsum("s,snk->nk", self.previous_betas, previous)

    @property
    def betas(self) -> list[float]:
        """All betas, the new one last."""
        return [*self.previous_betas.detach().tolist(), float(self.beta.detach())]


class Objective:
    """The robust loss of a stage on one batch, and the attack that its supremum is estimated by.

    `network` and `past` are what is called for scores: the plain modules, or compiled ones. `precision` opens the
    arithmetic of the passes (autocast), and is entered anew for each pass.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: StageModel,
        past: Ensemble | None,
        *,
        precision: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.recipe, self.model, self.past, self.precision = recipe, model, past, precision
        self.member: Callable[[Tensor], Tensor] = model.member
        self.stacked: Callable[[Tensor], Tensor] | None = past.stacked if past is not None else None
        # One pass through a trunk that nobody trains serves all members; a compiled member stays whole.
        members = [] if past is None or recipe.compile else [*past.members, model.member]
        trunks = shared_trunk(members) or []
        self.trunks = trunks if trunks and trunks[-1].frozen else []
        self.copies = recipe.noise_samples if recipe.smoothed else 1

    def loss(self, batch: Batch, *, draws: Draws, delta: float, steps: int, model: nn.Module | None = None) -> Tensor:
        """The mean robust loss, with a graph to the parameters and betas that the stage trains.

        `model` is what the loss is taken through: the stage's model, or its wrapper in a distributed training.
        """
        noise = self._noise(batch, draws)
        offsets = self._clean_offsets(batch, noise)
        x = self.attack(batch, noise=noise, offsets=offsets, draws=draws, delta=delta, steps=steps)
        combined, own = self._trained(self._points(x, noise), self._repeat(offsets), model)
        loss = self._regularised_loss(combined, batch.labels)
        if self.recipe.own_loss:
            share = self.recipe.own_loss
            loss = (1 - share) * loss + share * self._regularised_loss(own, batch.labels)
        return weighted_mean(loss, batch)

    def attack(
        self,
        batch: Batch,
        *,
        noise: Tensor | None,
        offsets: Tensor | None,
        draws: Draws,
        delta: float,
        steps: int,
    ) -> Tensor:
        """The perturbed images, as the recipe's attack finds them."""
        recipe = self.recipe
        if not recipe.attacked or delta == 0:
            return batch.image
        if batch.kept is not None:
            return batch.kept
        assert not recipe.keeps_perturbations, "the batch lacks the perturbations of its images"
        constant = self._repeat(offsets)

        def robust_loss(x: Tensor) -> Tensor:
            return self._example_loss(self._attacked_scores(self._points(x, noise), constant), batch.labels)

        with frozen(self.model):
            if recipe.attack == "n-fgsm" and steps == 1:
                return n_fgsm(robust_loss, batch.image, delta=delta, draws=draws)
            return pgd(
                robust_loss,
                batch.image,
                ball=ball(recipe.norm, delta),
                steps=steps,
                step=recipe.step_scale * delta / steps,
                draws=draws if recipe.start == "random" else None,
            )

    def _attacked_scores(self, points: Tensor, constant: Tensor | None) -> Tensor:
        """f^(t-1) + beta f_w as the attack sees it; `constant` is what it takes for f^(t-1) unless that is exact."""
        with self.precision():
            if self.past is None or self.recipe.previous != "exact":
                return self.model.combine(self.member(points).float(), constant)
            features = self._features(points)
            own = self.member(points) if features is None else self.trunks[-1].scores(features)
            return self.model.combine(own.float(), self._previous(points, features))

    def _trained(self, points: Tensor, constant: Tensor | None, model: nn.Module | None) -> tuple[Tensor, Tensor]:
        """f^(t-1) + beta f_w and f_w alone as the loss sees them, with a graph to what the stage trains."""
        with self.precision():
            features = self._features(points)
            previous = self._loss_previous(points, constant, features)
            found: tuple[Tensor, Tensor] = (model or self.model)(points, previous, features)
            return found

    def _loss_previous(self, points: Tensor, constant: Tensor | None, features: Tensor | None) -> Tensor | None:
        """f^(t-1) as the loss sees it, within its pass: the offsets, or the scores at the points that were found."""
        if self.past is None or self.recipe.previous == "clean":
            return constant
        # The attack is over, unless this pass gives the step of a kept perturbation as well.
        with torch.set_grad_enabled(points.requires_grad and self.recipe.previous == "exact"):
            return self._previous(points, features)

    def _clean_offsets(self, batch: Batch, noise: Tensor | None) -> Tensor | None:
        """f_s(x) of each frozen member at the unperturbed image as it is in the batch, after its augmentation.

        Taken from the batch where the stage has cached it; computed where augmentation made a new image of it.
        """
        if self.past is None or self.recipe.previous == "exact":
            return None
        if batch.offsets is not None:
            return batch.offsets
        with torch.no_grad(), self.precision():
            previous = self._previous(self._points(batch.image, noise), None)
        return previous.view(len(previous), self.copies, *batch.labels.shape, -1).mean(dim=1)

    def _features(self, points: Tensor) -> Tensor | None:
        """What the trunk that all members share makes of the points, where more than one of them is asked there.

        A head trains nothing of it: the points alone may want its gradient.
        """
        if not self.trunks or self.recipe.previous == "clean":
            return None
        with torch.set_grad_enabled(points.requires_grad and torch.is_grad_enabled()):
            return self.trunks[0].features(points)

    def _previous(self, points: Tensor, features: Tensor | None) -> Tensor:
        """The scores of each frozen member, behind the trunk if that was passed."""
        assert self.stacked is not None
        if features is None:
            return self.stacked(points).float()
        return torch.stack([trunk.scores(features) for trunk in self.trunks[:-1]]).float()

    def _noise(self, batch: Batch, draws: Draws) -> Tensor | None:
        if not self.recipe.smoothed:
            return None
        # One row per image: the noise of a row does not depend on how the batch is shared out.
        shape = torch.Size((len(batch.labels), self.copies, *batch.image.shape[1:]))
        return draws.normal(shape).transpose(0, 1).mul(self.recipe.training_sigma)

    def _points(self, x: Tensor, noise: Tensor | None) -> Tensor:
        return x if noise is None else (x + noise).flatten(0, 1)

    def _repeat(self, offsets: Tensor | None) -> Tensor | None:
        return offsets if offsets is None or self.copies == 1 else offsets.repeat(1, self.copies, 1)

    def _example_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        rows = scores.view(self.copies, len(labels), -1)
        return example_loss(rows, labels, self.recipe.smoothing)

    def _regularised_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """What training minimises. PGD maximises the loss alone: the regulariser knows no label."""
        loss = self._example_loss(scores, labels)
        if not self.recipe.consistency:
            return loss
        return loss + consistency_loss(scores.view(self.copies, len(labels), -1), self.recipe.consistency)
