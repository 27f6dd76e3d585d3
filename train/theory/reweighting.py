r"""Theorem robust-boosting made constructive: the booster's side of the game, by multiplicative weights.

The booster holds a distribution D over N rows: the examples (Definition robust-ova-weak-learner) or the incorrect
example/label pairs (Definition robust-weak-learner). In round t the weak learner answers D_t with a member h_t, whose
losses l_t(i) are in [-1, 1] and whose edge is gamma_t = -E_{D_t}[l_t]. The booster then shifts probability to where the
member failed, D_{t+1}(i) ~ D_t(i) exp(eta_t l_t(i)), and gives the member the beta eta_t / sum of eta.

**The bound.** Let Z_t = E_{i ~ D_t}[exp(eta_t l_t(i))]. Multiplying up, sum_i exp(sum_t eta_t l_t(i)) = N prod_t Z_t;
so with Q ~ eta every row has

    l(Q; i)  <=  (ln N + sum_t ln Z_t) / sum_t eta_t.                                                    (bound)

D_1 is uniform; if it is another distribution, N stands for 1 / min_i D_1(i), because
D_1(i) exp(sum_t eta_t l_t(i)) <= prod_t Z_t for every row.

If it is negative, every vote is right on the whole ball (Lemma loss-transfer, Theorem robust-boosting). Convexity of
exp on [-1, 1] gives Z_t <= (1 - gamma_t)/2 e^eta_t + (1 + gamma_t)/2 e^-eta_t, and Hoeffding's lemma gives
ln Z_t <= -eta_t gamma_t + eta_t^2 / 2.

* `adaptive`, as AdaBoost: eta_t = 1/2 ln((1 + gamma_t)/(1 - gamma_t)) minimises the first: Z_t <= sqrt(1 - gamma_t^2).
  As -ln(1 - g^2) >= g^2, the bound is negative after T > 2 ln(N) / gamma^2 rounds if every edge is at least gamma.
* `fixed`, the Hedge algorithm for a known number T of rounds: eta = sqrt(2 ln(N) / T) in every round, so the votes have
  equal betas. By the second, every row has l(Q; i) <= -mean(gamma_t) + sqrt(2 ln(N) / T): the margins are at least
  gamma - epsilon after T >= 2 ln(N) / epsilon^2 rounds, and positive after T > 2 ln(N) / gamma^2. Margins of gamma
  itself are what the minimax theorem promises for the best Q, which is a limit of such Q.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from robustinfer.errors import TrainingError

from .losses import error, vote_loss

__all__ = [
    "Boosted",
    "Reweighting",
    "boost",
    "effective_rows",
    "fixed_rate",
    "rounds_for_margin",
    "rounds_for_perfection",
]

H = TypeVar("H")


def fixed_rate(rows: float, rounds: int) -> float:
    """eta = sqrt(2 ln(N) / T), which makes the two terms of the regret, ln(N) / (eta T) and eta/2, equal."""
    return math.sqrt(2.0 * math.log(rows) / rounds)


def rounds_for_perfection(rows: int, gamma: float) -> int:
    """The smallest T > 2 ln(N) / gamma^2: a weak learner of edge gamma has made every vote right by then."""
    return math.floor(2.0 * math.log(rows) / gamma**2) + 1


def rounds_for_margin(rows: int, epsilon: float) -> int:
    """The smallest T >= 2 ln(N) / epsilon^2: with the fixed rate, every margin is at least gamma - epsilon by then."""
    return math.ceil(2.0 * math.log(rows) / epsilon**2)


def effective_rows(support: Tensor, start: Tensor | None = None) -> float:
    """N, the number of rows, if D_1 is uniform; else 1 / min_i D_1(i), which takes its place in (bound)."""
    return int(support.sum()) if start is None else 1.0 / float(start[support].min())


class Reweighting:
    """The booster's distribution, and the betas of the members it has seen.

    `support` is a mask of the rows that D may weigh; its shape is that of the losses. `rate` fixes eta (see
    `fixed_rate`); None adapts it to each member's edge. D_1 is `start`, which is positive on the support and sums to 1
    there; None is the uniform one. `rows` is N, or what stands for it.
    """

    def __init__(self, support: Tensor, *, rate: float | None = None, start: Tensor | None = None) -> None:
        self.support, self.rate = support, rate
        self.rows = effective_rows(support, start)
        self.etas: list[float] = []  # eta_t
        self.edges: list[float] = []  # gamma_t
        self._log_potential = 0.0  # sum_t ln Z_t
        self._log_density = torch.zeros(support.shape, dtype=torch.float64, device=support.device)
        if start is not None:
            self._log_density = start.double().log()

    @property
    def distribution(self) -> Tensor:
        """D_t, which sums to 1 over the support."""
        masked = self._log_density.masked_fill(~self.support, -math.inf)
        return masked.flatten().softmax(dim=0).view_as(masked)

    def update(self, losses: Tensor) -> float:
        """Count a member with these losses: returns its eta_t, and makes D_t into D_{t+1}.

        An adaptive eta_t is 0 for a member without an edge, which then does not vote and leaves D as it is; a fixed one
        does not look at the edge.
        """
        distribution, values = self.distribution, losses.double()
        edge = -error(values, distribution)
        rate = self._adapted(edge) if self.rate is None else self.rate
        self.etas.append(rate)
        self.edges.append(edge)
        self._log_potential += math.log(float((distribution * (rate * values).exp()).sum()))
        self._log_density = self._log_density + rate * values
        return rate

    def _adapted(self, edge: float) -> float:
        """1/2 ln((1 + gamma)/(1 - gamma)); an edge of 1 would make it infinite, so it is taken for 1 - 1/N.

        (bound) holds for any rate, so the cut costs no soundness.
        """
        kept = min(edge, 1.0 - 1.0 / self.rows)
        return 0.5 * math.log((1.0 + kept) / (1.0 - kept)) if kept > 0 else 0.0

    @property
    def betas(self) -> Tensor:
        """Q, which sums to 1."""
        etas = torch.tensor(self.etas, dtype=torch.float64)
        if not etas.sum() > 0:
            raise TrainingError(
                "No member had an edge on the distribution it was trained for, so there is nothing to vote with: "
                "train members longer, lower delta, or take larger members."
            )
        return etas / etas.sum()

    @property
    def bound(self) -> float:
        """What (bound) promises so far: no row has a loss l(Q; i) above it; infinite before a member votes."""
        total = sum(self.etas)
        return (math.log(self.rows) + self._log_potential) / total if total > 0 else math.inf


@dataclass(frozen=True)
class Boosted(Generic[H]):
    """The outcome of `boost`: members, their betas Q, their edges, and the losses l(Q; i) of all rows."""

    members: tuple[H, ...]
    betas: Tensor
    edges: tuple[float, ...]
    losses: Tensor
    bound: float

    def worst_margin(self, support: Tensor) -> float:
        """The smallest margin -l(Q; i); positive means that every vote is right on the whole ball."""
        return float(-self.losses[support].max())


def boost(
    weak_learner: Callable[[Tensor], H],
    losses: Callable[[H], Tensor],
    support: Tensor,
    *,
    rounds: int,
    rate: float | None = None,
) -> Boosted[H]:
    """Play the game for this many rounds: ask the weak learner for a member on D_t, see its losses, reweigh.

    `losses(h)` are those of `losses.py`, in the shape of `support`. A member that comes again is counted again.
    """
    game, members, seen = Reweighting(support, rate=rate), [], []
    for _ in range(rounds):
        member = weak_learner(game.distribution)
        members.append(member)
        seen.append(losses(member))
        game.update(seen[-1])
    betas = game.betas
    return Boosted(
        tuple(members), betas, tuple(game.edges), vote_loss(torch.stack(seen), betas.to(support.device)), game.bound
    )
