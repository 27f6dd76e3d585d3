"""The inner maximisation of Algorithm 1 and what it leaves: norm balls, projected gradient ascent, the losses it
climbs, AutoAttack, and accuracy under attack."""

from .accuracy import Accuracy, PgdAttack, attacked_points, measure
from .autoattack import measure_strong
from .balls import ball
from .losses import consistency_loss, example_loss
from .pgd import frozen, n_fgsm
from .proportions import Proportion

__all__ = [
    "Accuracy",
    "PgdAttack",
    "Proportion",
    "attacked_points",
    "ball",
    "consistency_loss",
    "example_loss",
    "frozen",
    "measure",
    "measure_strong",
    "n_fgsm",
]
