"""The betas of an ensemble as a convex problem, and members that no longer matter.

For fixed members the robust cross-entropy of sum_s beta_s f_s is convex in beta (eq. (surrogate-beta-erm)): scores are
linear in beta, the cross-entropy is convex in scores, and a supremum of convex functions is convex.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..attacks.accuracy import PgdAttack, attacked_points
from ..attacks.losses import example_loss
from ..data.balance import image_weights
from ..data.batches import as_pixels, in_order
from ..data.datasets import ImageData
from ..machine.processes import Processes
from ..machine.randomness import Draws
from ..members.ensemble import Ensemble

__all__ = ["refit_betas", "without_vanished"]

_BATCH = 500
_RIDGE = 1e-4  # keeps members with equal scores from trading arbitrarily large betas


def refit_betas(
    ensemble: Ensemble,
    data: ImageData,
    attack: PgdAttack,
    *,
    device: torch.device,
    seed: tuple[int, ...],
    rounds: int = 4,
    balance: str = "none",
) -> list[float]:
    """All betas, refitted on the robust loss over `data` with the members fixed, weighted by class as `balance` says.

    A cutting-plane method: attack the ensemble with its current betas, keep the points, minimise the loss of each
    image's worst point so far, and again. Of all betas on the way those are returned whose loss over all the points
    is the smallest, so the result is never worse at these points than the betas it started from.
    """
    candidates = [ensemble.betas.double().cpu()]
    cuts = [_attacked_scores(ensemble, candidates[0], data, attack, device, (*seed, 0))]
    weights = image_weights(data.labels, len(data.classes), balance)

    def loss(beta: Tensor) -> Tensor:
        worst = _worst(cuts, beta, data.labels, attack.smoothing)
        return worst.mean() if weights is None else (weights * worst).mean()

    for number in range(1, rounds + 1):
        candidates.append(_minimise(loss, candidates[-1], candidates[0]))
        cuts.append(_attacked_scores(ensemble, candidates[-1], data, attack, device, (*seed, number)))
    losses = [float(loss(beta)) for beta in candidates]
    return [float(value) for value in candidates[losses.index(min(losses))]]


def _attacked_scores(
    ensemble: Ensemble, beta: Tensor, data: ImageData, attack: PgdAttack, device: torch.device, seed: tuple[int, ...]
) -> Tensor:
    """Each member's scores at the points an attack on the ensemble with these betas finds: (s, copies, N, K)."""
    current = Ensemble(list(ensemble.members), beta.float()).freeze().to(device)
    parts = []
    for number, batch in in_order(data, _BATCH, Processes(device)):
        draws = Draws(*seed, number, device=device)
        points = attacked_points(current, batch.image, batch.labels, attack, draws)
        with torch.no_grad():
            scores = current.stacked(points.flatten(0, 1))
        parts.append(scores.view(len(scores), len(points), len(batch.labels), -1).double().cpu())
    return torch.cat(parts, dim=2)


def _worst(cuts: list[Tensor], beta: Tensor, labels: Tensor, smoothing: str) -> Tensor:
    """The loss of each image at the worst of its points."""
    losses = [example_loss(torch.einsum("s,smnk->mnk", beta, cut), labels, smoothing) for cut in cuts]
    return torch.stack(losses).amax(dim=0)


def _minimise(loss: Callable[[Tensor], Tensor], beta: Tensor, start: Tensor) -> Tensor:
    variable = beta.clone().requires_grad_()
    solver = torch.optim.LBFGS([variable], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        value = loss(variable) + _RIDGE * (variable - start).square().sum()
        value.backward()
        return value

    solver.step(closure)
    return variable.detach()


def without_vanished(
    ensemble: Ensemble, betas: list[float], data: ImageData, share: float, device: torch.device
) -> list[float]:
    """The betas with 0 for members whose part of the scores' spread is below `share`; the largest always stays.

    A beta alone says nothing, because a member's own scores may be large or small: what counts is beta times
    the spread of the scores between classes.
    """
    image = as_pixels(data.take(torch.arange(min(_BATCH, len(data)))), device)
    with torch.no_grad():
        spread = ensemble.stacked(image).std(dim=2).mean(dim=1).double().cpu()
    parts = torch.tensor(betas, dtype=torch.float64).abs() * spread
    keep = (parts >= share * parts.sum()) | (parts == parts.max())
    return [beta if kept else 0.0 for beta, kept in zip(betas, keep.tolist(), strict=True)]
