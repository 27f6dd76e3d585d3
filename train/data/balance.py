"""Classes that count alike however many images they have: weights of the loss, or an order that draws them equally.

With K classes and n_y of N training images in class y, an image of class y has the weight w_y = N / (K n_y). The mean
of the weights over the training images is 1, so a learning rate keeps its meaning, and the weighted mean of any loss is
the plain mean over classes of each class's mean. An order that meets every class N / K times an epoch has the same
expectation without weights: its mean is over draws of probability w_y / N.
"""

import torch
from torch import Tensor

__all__ = ["balanced_order", "class_weights", "image_weights"]


def class_weights(labels: Tensor, classes: int) -> Tensor:
    """w_y of each class; K counts the classes that have an image, and one without any has the weight 0."""
    counts = torch.bincount(labels, minlength=classes).double()
    present = counts > 0
    return torch.where(present, len(labels) / (present.sum() * counts.clamp_min(1)), 0.0)


def image_weights(labels: Tensor, classes: int, balance: str) -> Tensor | None:
    """w_y of each image; None where `balance` is "none" and all images count alike."""
    return None if balance == "none" else class_weights(labels, classes)[labels]


def balanced_order(labels: Tensor, stream: torch.Generator) -> Tensor:
    """As many numbers of images as there are labels, in random order, equally many of each class but for one.

    Every image of a class comes once before one of them comes again. Which classes come once more than others, if the
    number of images is not a multiple of theirs, is drawn as well, so every class has the same expectation.
    """
    present = labels.unique()
    places = torch.full((len(present),), len(labels) // len(present))
    places[torch.randperm(len(present), generator=stream)[: len(labels) % len(present)]] += 1
    parts = []
    for label, wanted in zip(present, places.tolist(), strict=True):
        own = (labels == label).nonzero().flatten()
        rounds = -(-wanted // len(own))
        parts.append(torch.cat([own[torch.randperm(len(own), generator=stream)] for _ in range(rounds)])[:wanted])
    return torch.cat(parts)[torch.randperm(len(labels), generator=stream)]
