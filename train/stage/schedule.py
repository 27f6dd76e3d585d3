"""The schedules of a stage: learning rate, perturbation radius, and the rough cost the time estimate is made of."""

import math

from ..recipe import Recipe

__all__ = [
    "LAST_DECAY",
    "constant_learning_rate",
    "cosine_learning_rate",
    "decay_learning_rate",
    "ramped_delta",
    "run_cost",
    "stage_cost",
]

LAST_DECAY = (
    0.25  # of a training; as good as a rate that falls all the time, or better (benchmarks/details/schedules.md)
)
_WARM_UP = 50  # steps


def cosine_learning_rate(maximum: float, fraction: float) -> float:
    """eq. (cyclic-lr): from eta_max at the start of a stage to 0 at its end; `fraction` is the part completed."""
    return 0.5 * maximum * (1 + math.cos(math.pi * fraction))


def constant_learning_rate(maximum: float, step: int) -> float:
    """Linear to the maximum over the first steps, and constant from then on: a training that can be cut anywhere."""
    return maximum * min(1.0, (step + 1) / _WARM_UP)


def decay_learning_rate(maximum: float, fraction: float, step: int) -> float:
    """The same, but linear to 0 over the last quarter of a stage of which `fraction` is completed."""
    return constant_learning_rate(maximum, step) * min(1.0, (1 - fraction) / LAST_DECAY)


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


def run_cost(recipe: Recipe, *, images: int, finished: int = 0) -> float:
    """The time of the stages that are not finished, measurements included, in steps of the first stage.

    An epoch ends with an attack on held-out images, a stage with about three more of them.
    """
    attack = recipe.steps * 2 if recipe.attacked and not recipe.keeps_perturbations else 0
    passes = 2 + (2 * max(10, recipe.steps) if recipe.delta > 0 else 0)  # of a measurement, per image
    held_out = min(recipe.validation_images, images * recipe.validation / max(0.5, 1 - recipe.validation))
    measuring = held_out * passes / (recipe.batch * (attack + 3))
    steps = 0.0
    for stage in range(finished + 1, recipe.stages + 1):
        steps += stage_cost(recipe, stage) * (images // recipe.batch)
        members = 1 if recipe.booster == "independent" else stage
        steps += (recipe.stage_epochs(stage) + 3) * members * measuring
    return steps
