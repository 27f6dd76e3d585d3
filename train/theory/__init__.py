"""The theory of the paper as code: losses, errors and edges; checkers; the weak learner; boosting by reweighting.

`docs/theory.md` says which definition, lemma and theorem is which function.
"""

from .checkers import Checked, Checker, PgdChecker
from .linear import LinearChecker
from .losses import (
    error,
    incorrect_pairs,
    loss,
    ova_error,
    ova_loss,
    robust_cross_entropy,
    robust_error,
    robust_loss,
    surrogate_bound,
    tilde,
    vote_loss,
    vote_scores,
)
from .reweighting import (
    Boosted,
    Reweighting,
    boost,
    effective_rows,
    fixed_rate,
    rounds_for_margin,
    rounds_for_perfection,
)
from .weak_learner import WeakMember, find_weak_member

__all__ = [
    "Boosted",
    "Checked",
    "Checker",
    "LinearChecker",
    "PgdChecker",
    "Reweighting",
    "WeakMember",
    "boost",
    "effective_rows",
    "error",
    "find_weak_member",
    "fixed_rate",
    "incorrect_pairs",
    "loss",
    "ova_error",
    "ova_loss",
    "robust_cross_entropy",
    "robust_error",
    "robust_loss",
    "rounds_for_margin",
    "rounds_for_perfection",
    "surrogate_bound",
    "tilde",
    "vote_loss",
    "vote_scores",
]
