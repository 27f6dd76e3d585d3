"""Losses of noisy copies: what an attack climbs and a stage descends."""

import math

from torch import Tensor
from torch.nn import functional

__all__ = ["consistency_loss", "example_loss"]

_ENTROPY = 0.5  # the eta of Jeong and Shin


def example_loss(scores: Tensor, labels: Tensor, smoothing: str = "none") -> Tensor:
    """One loss per row, from scores of shape (m, batch, classes) at m noisy copies of each point (m = 1 without noise).

    `scores` is the paper's smoothed class: the cross-entropy of the mean scores. `softmax` is SmoothAdv (Salman et al.
    2019): minus the logarithm of the mean probability of the label. `gaussian` is plain augmentation (Cohen et al.
    2019): the mean cross-entropy.
    """
    copies, count, classes = scores.shape
    if smoothing == "softmax":
        log_probabilities = functional.log_softmax(scores, dim=-1)
        mean = log_probabilities.logsumexp(dim=0) - math.log(copies)
        return functional.nll_loss(mean, labels, reduction="none")
    if smoothing == "gaussian":
        rows = scores.reshape(copies * count, classes)
        loss = functional.cross_entropy(rows, labels.repeat(copies), reduction="none")
        return loss.view(copies, count).mean(dim=0)
    return functional.cross_entropy(scores.mean(dim=0), labels, reduction="none")


def consistency_loss(scores: Tensor, strength: float) -> Tensor:
    """Consistency regularisation (Jeong and Shin 2020), one value per row, from scores of shape (m, batch, classes).

    strength * mean_i KL(p_mean || p_i) + 0.5 H(p_mean), where p_i are the probabilities at noisy copy i and p_mean is
    their mean: copies that agree, on an answer that is sure, are what a large certified radius takes.
    """
    log_probabilities = functional.log_softmax(scores, dim=-1)
    log_mean = log_probabilities.logsumexp(dim=0) - math.log(len(scores))
    mean = log_mean.exp()
    divergence = (mean * (log_mean - log_probabilities)).sum(dim=-1).mean(dim=0)
    entropy = -(mean * log_mean).sum(dim=-1)
    return strength * divergence + _ENTROPY * entropy
