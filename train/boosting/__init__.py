"""The outer loop of Algorithm 1: boosters train one stage after the other and settle the betas of the ensemble."""

from .booster import Booster, IndependentBooster
from .registry import make_booster

__all__ = [
    "Booster",
    "IndependentBooster",
    "make_booster",
]
