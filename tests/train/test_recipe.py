"""Recipes: strict, readable, and refused with a sentence."""

import dataclasses
from pathlib import Path

import pytest
from robust.train import Recipe, builtin_recipes
from robust.train.recipe_fields import describe

from robustinfer.errors import RecipeError

DOCS = Path(__file__).parents[2] / "docs" / "recipes.md"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"stagez": 3}, "no field `stagez`; did you mean `stages`"),
        ({"stages": "three"}, "`stages` is a whole number at least 1"),
        ({"stages": True}, "`stages` is a whole number"),
        ({"stages": 2.5}, "`stages` is a whole number"),
        ({"stages": 0}, "`stages` is a whole number at least 1"),
        ({"delta": "0.1"}, "`delta` is a number"),
        ({"delta": float("nan")}, "`delta` is a number"),
        ({"delta": -0.1}, "`delta` is a number at least 0"),
        ({"delta": 8.0}, "at most 1 for linf; found 8 .did you mean 8/255"),
        ({"norm": "l1"}, '`norm` is "linf", "l2"; found \'l1\''),
        ({"smoothing": "scores"}, "Smoothing needs both `smoothing` and a positive `sigma`"),
        ({"sigma": 0.25}, "Smoothing needs both"),
        ({"smoothing": "scores", "sigma": 0.25, "norm": "linf"}, "certifies l2 balls"),
        ({"attack": "n-fgsm", "norm": "l2"}, "N-FGSM is an linf attack"),
        ({"attack": "kept", "augment": "crop"}, "which does not fit the image that augment = 'crop' makes"),
        ({"learning_rate": 0}, "`learning_rate` is a number above 0"),
        ({"warm_start": "yes"}, "`warm_start` is true or false"),
    ],
)
def test_bad_fields_are_refused_with_a_sentence(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        Recipe.from_json(fields)


@pytest.mark.parametrize("name", builtin_recipes())
def test_built_in_recipes_survive_a_round_trip(name: str, tmp_path: Path) -> None:
    recipe = Recipe.load(name)
    assert recipe.name == name
    assert recipe.description
    file = tmp_path / "copy.toml"
    file.write_text(recipe.to_toml() + "\n[provenance]\nseed = 1\n", encoding="utf-8")
    assert Recipe.load(file) == recipe


def test_set_changes_fields_by_their_type() -> None:
    recipe = Recipe().set(["stages=3", "delta = 0.2", "warm_start=false", "previous=exact", 'data="npz:a=b.npz"'])
    assert (recipe.stages, recipe.delta, recipe.warm_start, recipe.previous) == (3, 0.2, False, "exact")
    assert recipe.data == "npz:a=b.npz"
    for words, sentence in (
        ("stages", "--set takes key=value"),
        ("stagez=3", "no field `stagez`"),
        ("stages=many", "`stages` is a whole number"),
        ("warm_start=maybe", "`warm_start` is true or false"),
    ):
        with pytest.raises(RecipeError, match=sentence):
            Recipe().set([words])


def test_a_file_extends_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('extends = "digits-linf"\nstages = 7\n')
    recipe = Recipe.load(file)
    assert recipe == Recipe.load("digits-linf").replace(name="mine", stages=7)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"one of .*digits-l2.*; there is no 'digits-l3'"):
        Recipe.load("digits-l3")
    file = tmp_path / "broken.toml"
    file.write_text("stages = = 3")
    with pytest.raises(RecipeError, match="is not a TOML document"):
        Recipe.load(file)


def test_the_paper_recipes_hold_the_papers_values() -> None:
    """Section 4: 7 steps of 1.3 delta/7 and 4 of delta/8, N_1, eta_max, the architectures, sgd, offsets, T = 5."""
    for name, epochs, rate, architecture in (
        ("paper-mnist-linf", 5, 0.01, "resnet18"),
        ("paper-cifar10-linf", 10, 0.01, "resnet32"),
        ("paper-imagenet-linf", 10, 0.01, "imagenet-resnet32"),
        ("paper-cifar10-l2", 10, 0.3, "resnet32"),
        ("paper-imagenet-l2", 10, 0.3, "imagenet-resnet32"),
    ):
        recipe = Recipe.load(name)
        found = (recipe.stages, recipe.growth, recipe.previous, recipe.betas, recipe.optimizer, recipe.warm_start)
        assert found == (5, 2.0, "clean", "trained", "sgd", True)
        assert (recipe.epochs, recipe.learning_rate, recipe.architecture) == (epochs, rate, architecture)
        smoothed = name.endswith("l2")
        attack = (recipe.steps, recipe.step_scale, recipe.start, recipe.smoothing)
        assert attack == ((4, 0.5, "input", "scores") if smoothed else (7, 1.3, "random", "none"))


def test_the_documentation_lists_every_field_and_every_recipe() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for field in dataclasses.fields(Recipe):
        row = f"| `{field.name}` | {_shown(field.default)} | {field.metadata['help']} | {describe(field)} |"
        assert row in text, f"docs/recipes.md lacks or has changed: {row}"
    for name in builtin_recipes():
        assert f"`{name}`" in text


def _shown(default: object) -> str:
    return "" if default == "" else f"`{str(default).lower() if isinstance(default, bool) else default}`"


def test_old_names_and_dropped_fields_are_read_by_one_rule(tmp_path: Path) -> None:
    """Renamed: both names work, not together. Dropped: only with the value that changed nothing."""
    file = tmp_path / "old.toml"
    file.write_text('extends = "digits-linf"\nweights = "trained"\ninitial_beta = 1.0\nlabel_smoothing = 0\n')
    recipe = Recipe.load(file)
    assert recipe == Recipe.load("digits-linf").replace(name="old", betas="trained")
    assert Recipe().set(["weights=corrective"]).betas == Recipe().replace(weights="corrective").betas == "corrective"
    assert "weights" not in recipe.to_json()
    with pytest.raises(RecipeError, match="`betas` is given twice, once by its old name"):
        Recipe.from_json({"weights": "trained", "betas": "trained"})
    for name, value in (("initial_beta", 2.0), ("label_smoothing", 0.1)):
        with pytest.raises(RecipeError, match=f"The field `{name}` no longer exists; found {value}: remove it"):
            Recipe.from_json({name: value})
