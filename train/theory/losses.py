"""The losses of sections 3.1 to 3.4: plain, robust and one-versus-all; their errors; the votes h_Q; the surrogate.

All of them are functions of what is known about a unilabel predictor h around each example. `reached` is the matrix
1[exists z in B_p(delta): h(x_i + z) = c], one row per example, one column per class. A checker computes it
(`checkers.py`): the exact one for linear members all of it, an attack only entries that are surely 1. Every loss here
grows with `reached`, so what an attack finds gives a loss that is at most the true one.

The loss of an incorrect pair (x_i, y') stands at row i, column y'. The column of the true label belongs to no incorrect
pair; it holds 0 and no distribution weighs it (`incorrect_pairs`).
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

__all__ = [
    "error",
    "incorrect_pairs",
    "loss",
    "ova_error",
    "ova_loss",
    "robust_cross_entropy",
    "robust_error",
    "robust_loss",
    "surrogate_bound",
    "tilde",
    "vote_loss",
    "vote_scores",
]


def incorrect_pairs(labels: Tensor, classes: int) -> Tensor:
    """The set of incorrect example/label pairs (x_i, y'), y' != y_i, of section 3.1 as a mask (examples, classes)."""
    return functional.one_hot(labels, classes) == 0


def loss(predicted: Tensor, labels: Tensor) -> Tensor:
    """l(h; x, y, y') = 1[y' in h(x)] - 1[y in h(x)] of section 3.1, for label sets of shape (examples, classes)."""
    own = predicted.gather(1, labels[:, None])
    return predicted.double() - own.double()  # 0 in the column of the true label, by itself


def tilde(reached: Tensor, labels: Tensor) -> Tensor:
    """The predictor h~ of Theorem robust-boosting's proof: y if h is y on the whole ball, y' if reached."""
    sets = reached.clone()
    sets.scatter_(1, labels[:, None], _robust(reached, labels)[:, None])
    return sets


def robust_loss(reached: Tensor, labels: Tensor) -> Tensor:
    """l_delta of eq. (robustloss): 1[exists z: h(x+z) = y'] - 1[for all z: h(x+z) = y].

    It is the plain loss of h~, which is how the theorem reduces robust boosting to boosting.
    """
    return loss(tilde(reached, labels), labels)


def ova_loss(reached: Tensor, labels: Tensor) -> Tensor:
    """l_delta^ova of eq. (ova-loss): 2 1[exists z: h(x+z) != y] - 1, one number per example.

    It is at least the robust loss of each pair of the example: eq. (loss-domination).
    """
    return 1.0 - 2.0 * _robust(reached, labels).double()


def _robust(reached: Tensor, labels: Tensor) -> Tensor:
    """1[for all z: h(x+z) = y]: no other label is reached."""
    return ~(reached & incorrect_pairs(labels, reached.shape[1])).any(dim=1)


def error(losses: Tensor, distribution: Tensor) -> float:
    """E_D of a loss: err(h, D), err_delta(h, D) or err_delta^ova(h, D), by the loss. Its negative is the edge gamma."""
    return float((losses * distribution).sum())


def robust_error(reached: Tensor, labels: Tensor, distribution: Tensor) -> float:
    """err_delta(h, D) of section 3.2, with D over incorrect pairs."""
    return error(robust_loss(reached, labels), distribution)


def ova_error(reached: Tensor, labels: Tensor, distribution: Tensor) -> float:
    """err_delta^ova(h, D) of section 3.3, with D over examples."""
    return error(ova_loss(reached, labels), distribution)


def vote_scores(predicted: Tensor, betas: Tensor, classes: int) -> Tensor:
    """h_Q(x) = E_{h ~ Q}[h(x)] for labels `predicted` of shape (members, examples): (examples, classes)."""
    return torch.einsum("t,tnk->nk", betas, functional.one_hot(predicted, classes).to(betas.dtype))


def vote_loss(losses: Tensor, betas: Tensor) -> Tensor:
    """l(Q; ...) = E_{h ~ Q}[l(h; ...)], from the losses of each member along the first axis.

    Lemma loss-transfer: where it is negative for every y', the vote h_Q^am gives y. With robust losses it gives y on
    the whole ball (Theorem robust-boosting). Its negative is the margin of the vote.
    """
    total: Tensor = torch.tensordot(betas.double(), losses.double(), dims=1)
    return total


def robust_cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """l_delta^ce of eq. (ellsce): the supremum of the cross-entropy over points of the ball.

    `scores` are f(x_i + z) of shape (points, examples, classes); over a sample of points it is a lower bound.
    """
    points, examples, classes = scores.shape
    losses = functional.cross_entropy(scores.reshape(-1, classes), labels.repeat(points), reduction="none")
    return losses.view(points, examples).amax(dim=0)


def surrogate_bound(cross_entropy: Tensor) -> Tensor:
    """Lemma surrogate: l_delta^ova(f^am; x, y) <= (2 / ln 2) l_delta^ce(f; x, y) - 1."""
    return 2.0 / math.log(2.0) * cross_entropy - 1.0
