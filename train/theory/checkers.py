"""Approximate checkers, Definition apx-checker: is there a perturbation in the ball that changes the label?

A (c, delta)-approximate checker answers, for each example, either with a perturbation z in B_p(delta) for which
h(x + z) != y, or with Good. It must find one if there is one in the smaller ball B_p(delta/c), must say Good if there
is none in B_p(delta), and may say either in between. c = 1 is an exact checker.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..attacks.accuracy import PgdAttack
from ..attacks.balls import ball
from ..attacks.losses import example_loss
from ..attacks.pgd import pgd
from ..machine.randomness import Draws

__all__ = ["Checked", "Checker", "PgdChecker", "Scores"]

Scores = Callable[[Tensor], Tensor]
"""A member: images (batch, C, H, W) to scores (batch, classes). It is used as the unilabel predictor f^am."""


@dataclass(frozen=True)
class Checked:
    """The answers of a checker: `vulnerable` rows come with their z in `perturbation`; the others are Good."""

    vulnerable: Tensor
    perturbation: Tensor


class Checker(Protocol):
    """Definition apx-checker. `c` is the factor of the definition, infinite for a checker that promises nothing."""

    @property
    def c(self) -> float:
        """How much smaller the ball is in which this checker overlooks nothing."""

    def check(self, member: Scores, image: Tensor, labels: Tensor) -> Checked:
        """A(h; x, y) for each row."""

    def reached(self, member: Scores, image: Tensor, labels: Tensor) -> Tensor:
        """Labels that perturbations in the ball reach, (batch, classes): the `reached` of `losses.py`."""


class PgdChecker:
    """Projected gradient ascent: what it finds is real, what it does not find may exist.

    The unperturbed image is always tried, so this is a checker with c infinite: it overlooks nothing in B_p(0). Losses
    and errors from it are lower bounds of the true ones; vulnerability is underestimated. Points stay in [0,1].

    `targeted` also attacks towards each label, which the losses of incorrect pairs ask for: k - 1 searches an example
    in place of one. With a smoothed attack, h is the argmax of the mean scores over noise that the attack knows.
    """

    c = float("inf")

    def __init__(self, attack: PgdAttack, *, seed: tuple[int, ...], targeted: bool = False) -> None:
        self.attack, self.seed, self.targeted = attack, seed, targeted

    def check(self, member: Scores, image: Tensor, labels: Tensor) -> Checked:
        x, found = self._attacked(member, image, labels)
        vulnerable = found != labels
        return Checked(vulnerable, torch.where(vulnerable.view(-1, *[1] * (image.ndim - 1)), x - image, 0.0))

    def reached(self, member: Scores, image: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            classes = member(image[:1]).shape[1]
        reached = torch.zeros(len(image), classes, dtype=torch.bool, device=image.device)
        every = torch.arange(len(image), device=image.device)
        reached[every, self._labels(member, image)] = True
        if self.attack.delta == 0:
            return reached
        reached[every, self._attacked(member, image, labels)[1]] = True
        for target in range(classes) if self.targeted else ():
            rows = (~reached[:, target] & (labels != target)).nonzero().flatten()
            if len(rows):
                _, label = self._search(member, image[rows], labels[rows], target, towards=target)
                reached[rows, label] = True
        return reached

    def _attacked(self, member: Scores, image: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Points and the labels there: the image itself if h is wrong on it, else what the restarts find."""
        points, found = image.clone(), self._labels(member, image)
        for restart in range(self.attack.restarts if self.attack.delta > 0 else 0):
            rows = (found == labels).nonzero().flatten()
            if not len(rows):
                break
            points[rows], found[rows] = self._search(member, image[rows], labels[rows], restart, towards=None)
        return points, found

    def _search(
        self, member: Scores, image: Tensor, labels: Tensor, number: int, *, towards: int | None
    ) -> tuple[Tensor, Tensor]:
        """One run of the attack, away from the labels or towards one: the points, and what h says there."""
        attack = self.attack
        goal = labels if towards is None else torch.full_like(labels, towards)
        sign = 1.0 if towards is None else -1.0

        def objective(x: Tensor) -> Tensor:
            return sign * example_loss(self._scores(member, x), goal, attack.smoothing)

        x = pgd(
            objective,
            image,
            ball=ball(attack.norm, attack.delta),
            steps=attack.steps,
            step=attack.step_scale * attack.delta / attack.steps,
            draws=Draws(*self.seed, number, 0 if towards is None else 1, device=image.device),
        )
        return x, self._labels(member, x)

    def _labels(self, member: Scores, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self._scores(member, x).mean(dim=0).argmax(dim=1)

    def _scores(self, member: Scores, x: Tensor) -> Tensor:
        """Scores at each noisy copy, (copies, batch, classes).

        The noise is one and the same for all images and calls: then h is one fixed function of x.
        """
        attack = self.attack
        if not attack.sigma:
            return member(x)[None]
        shape = torch.Size((attack.copies, 1, *x.shape[1:]))
        noise = Draws(*self.seed, device=x.device).normal(shape) * attack.sigma
        return member((x + noise).flatten(0, 1)).view(attack.copies, len(x), -1)
