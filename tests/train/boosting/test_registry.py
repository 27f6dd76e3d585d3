"""The registry of boosters and the recipe name the same ones."""

from robust.train import Recipe
from robust.train.boosting.registry import BOOSTERS


def test_every_booster_that_a_recipe_can_name_is_registered() -> None:
    choices = Recipe.__dataclass_fields__["booster"].metadata["choices"]
    assert tuple(BOOSTERS) == choices
