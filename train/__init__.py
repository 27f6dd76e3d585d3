"""Training: a recipe becomes a run folder.

from robust.train import Recipe, train
run = train(Recipe.load("digits-linf"), "runs/digits-linf")
run.ensemble()          # a torch module: pixels in [0,1] to scores
"""

from .ensemble import Ensemble
from .recipe import Recipe, builtin_recipes
from .run import Run, Stage
from .training import train

__all__ = ["Ensemble", "Recipe", "Run", "Stage", "builtin_recipes", "train"]
