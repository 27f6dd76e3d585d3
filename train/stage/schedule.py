"""The schedules of a stage: learning rate, perturbation radius, and the rough cost the time estimate is made of."""

import math

from ..recipe import Recipe

__all__ = ["cosine_learning_rate", "ramped_delta", "stage_cost"]


def cosine_learning_rate(maximum: float, fraction: float) -> float:
    """eq. (cyclic-lr): from eta_max at the start of a stage to 0 at its end; `fraction` is the part completed."""
    return 0.5 * maximum * (1 + math.cos(math.pi * fraction))


def ramped_delta(recipe: Recipe, epoch: float, *, fresh: bool) -> float:
    """The radius after `epoch` epochs of a stage.

    A member that starts from random parameters meets a radius that grows over the first `ramp` epochs: at full strength
    from the first step it may settle on one class for every image, which no attack can change.
    """
    return recipe.delta * min(1.0, epoch / recipe.ramp) if fresh and recipe.ramp > 0 else recipe.delta


def stage_cost(recipe: Recipe, stage: int) -> float:
    """The time of a stage in units of one epoch of the first, as far as counting passes can tell."""
    past = 0 if recipe.booster == "independent" else stage - 1
    attack = recipe.steps * 2 if recipe.attacked and not recipe.keeps_perturbations else 0
    exact = 2.0 if recipe.keeps_perturbations else attack + 1.0  # a kept perturbation needs their backward pass, too
    frozen = {"clean": 0.0, "adversarial": 1.0, "exact": exact}[recipe.previous]
    return recipe.stage_epochs(stage) * (1 + past * frozen / (attack + 3))
