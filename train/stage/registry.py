"""The objectives by the field `smoothing` that names them."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from ..members.ensemble import Ensemble
from ..recipe import Recipe
from .confidence import ConfidenceObjective, SoftTargets
from .objective import Objective, StageModel

__all__ = ["make_objective"]


def make_objective(
    recipe: Recipe,
    model: StageModel,
    past: Ensemble | None,
    *,
    targets: SoftTargets | None = None,
    precision: Callable[[], AbstractContextManager[object]],
) -> Objective:
    """What a stage of this recipe descends, complete; `targets` are those of CAT-RS, if it has any."""
    if recipe.smoothing == "cat-rs":
        return ConfidenceObjective(recipe, model, past, targets=targets, precision=precision)
    return Objective(recipe, model, past, precision=precision)
