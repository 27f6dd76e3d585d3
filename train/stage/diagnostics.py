"""Diagnostics of the theory: is each member a weak learner, and does the ensemble gain from it?

Every warning has a code, which is also its anchor in `docs/training.md`.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..attacks.accuracy import Accuracy, PgdAttack, attacked_points
from ..data.balance import image_weights
from ..data.batches import in_order
from ..data.datasets import ImageData
from ..machine.processes import Processes
from ..machine.randomness import Draws

__all__ = ["edge", "stage_warnings", "summarise", "warning"]

_BATCH = 500


def warning(code: str, message: str) -> dict[str, str]:
    """A warning with a link to what it means and what to do."""
    return {"code": code, "message": message, "link": f"docs/training.md#{code}"}


def edge(
    member: Callable[[Tensor], Tensor],
    past: Callable[[Tensor], Tensor] | None,
    data: ImageData,
    attack: PgdAttack,
    *,
    processes: Processes,
    seed: tuple[int, ...],
    balance: str = "none",
) -> float:
    """The edge gamma of a member: minus its robust one-versus-all error err_delta^ova(h, D).

    D is the distribution that the boosting step leaves for the member: for the cross-entropy, the gradient of the loss
    of f^(t-1) at its attacked point weighs example i by 1 - p(y_i). The first member meets the uniform one. With
    `balance` both are weighed as the recipe weighs classes. The supremum over the ball is what the attack finds, so the
    true edge is at most this.
    """
    sums = torch.zeros(2, dtype=torch.float64, device=processes.device)
    weights = image_weights(data.labels, len(data.classes), balance)
    for number, batch in in_order(data, _BATCH, processes):
        image, labels = batch.image, batch.labels
        draws = Draws(*seed, number, device=processes.device)
        failed = _mean_scores(member, image, labels, attack, draws).argmax(dim=1) != labels
        density = torch.ones(len(labels), dtype=torch.float64, device=processes.device)
        if past is not None:
            scores = _mean_scores(past, image, labels, attack, draws)
            density = 1 - functional.softmax(scores.double(), dim=1).gather(1, labels[:, None])[:, 0]
        if weights is not None:
            density = density * weights[batch.numbers].to(density)
        sums += torch.stack([density.sum(), (density * (1 - 2 * failed.double())).sum()])
    processes.sum(sums)
    total, gain = sums.tolist()
    return gain / total if total > 0 else 1.0


def stage_warnings(number: int, *, gamma: float, ensemble: Accuracy, member: Accuracy) -> list[dict[str, str]]:
    """What a person should know about a finished stage; both accuracies are on held-out images."""
    found = []
    if gamma <= 0:
        message = (
            f"The member of stage {number} is not a weak learner: its edge on the current distribution is {gamma:.3f}, "
            "and boosting needs a positive one."
        )
        found.append(warning("no-weak-learner", message))
    if sum(count > 0 for count in member.predicted) == 1 and member.images > len(member.predicted):
        message = f"The member of stage {number} predicts one class only, for all {member.images} held-out images."
        found.append(warning("one-class-only", message))
    # One standard error of the count: fewer images apart are the luck of the attack.
    error = math.sqrt(max(1.0, member.images * member.robust_accuracy * (1 - member.robust_accuracy)))
    if number > 1 and member.robust - ensemble.robust > error:
        message = (
            f"After stage {number} the ensemble is worse than its last member alone: robust accuracy "
            f"{ensemble.robust_accuracy:.1%} against {member.robust_accuracy:.1%} on {member.images} held-out images."
        )
        found.append(warning("worse-than-last-member", message))
    return found


def summarise(gamma: float, ensemble: Accuracy, member: Accuracy) -> dict[str, Any]:
    """The measurements of a finished stage, for its JSON document."""
    return {
        "edge": gamma,
        "held_out_images": ensemble.images,
        "clean_accuracy": ensemble.clean_accuracy,
        "robust_accuracy": ensemble.robust_accuracy,
        "member_clean_accuracy": member.clean_accuracy,
        "member_robust_accuracy": member.robust_accuracy,
    }


def _mean_scores(
    scores: Callable[[Tensor], Tensor], image: Tensor, labels: Tensor, attack: PgdAttack, draws: Draws
) -> Tensor:
    points = attacked_points(scores, image, labels, attack, draws)
    with torch.no_grad():
        return scores(points.flatten(0, 1)).view(len(points), len(labels), -1).mean(dim=0)
