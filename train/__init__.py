"""Training: a recipe becomes a run folder.

from robust.train import Recipe, train
run = train(Recipe.load("digits-linf"), "runs/digits-linf")
run.ensemble()          # a torch module: pixels in [0,1] to scores

Names are imported when they are first used: reading a recipe needs no torch.
"""

from typing import TYPE_CHECKING

from robustinfer.lazy import lazy_names

if TYPE_CHECKING:
    from .budget.purse import Budget as Budget
    from .members.ensemble import Ensemble as Ensemble
    from .recipe import Recipe as Recipe
    from .recipe import builtin_recipes as builtin_recipes
    from .runs.run import Run as Run
    from .runs.run import Stage as Stage
    from .starting import Start as Start
    from .training import train as train
    from .training import train_within as train_within

__all__ = ["Budget", "Ensemble", "Recipe", "Run", "Stage", "Start", "builtin_recipes", "train", "train_within"]

_HOMES = {
    "Budget": ".budget.purse",
    "Ensemble": ".members.ensemble",
    "Recipe": ".recipe",
    "Run": ".runs.run",
    "Stage": ".runs.run",
    "Start": ".starting",
    "builtin_recipes": ".recipe",
    "train": ".training",
    "train_within": ".training",
}

__getattr__ = lazy_names(__name__, _HOMES)
