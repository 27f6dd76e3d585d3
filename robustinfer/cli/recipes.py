"""`robust recipes`: which recipes there are, and a template for one of your own."""

from pathlib import Path
from typing import Annotated

import typer

from ..extras import needed
from .console import note, print_json, print_text, program

__all__ = ["command", "recipe_lines"]


def command(
    new: Annotated[
        str | None,
        typer.Option("--new", metavar="KIND", help="Write a commented recipe to start from; KIND is folder."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Output file for --new; default KIND.toml.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the recipes as one JSON object.")] = False,
) -> None:
    """List the built-in recipes with one line each, or write a template for your own data.

    [bold]robust recipes --new folder --out my-images.toml[/bold]
    """
    if new is None:
        with needed(extra="train", why="robust recipes"):
            from robust.train.recipe import Recipe, builtin_recipes

        if json:
            print_json({name: Recipe.load(name).to_json() for name in builtin_recipes()})
            return
        print_text(recipe_lines())
        note(f"Train one with: {program()} train RECIPE; start your own with: {program()} recipes --new folder")
        return
    with needed(extra="train", why="robust recipes"):
        from robust.train.recipe import recipe_template

    from ..errors import ArgumentError
    from ..files import write_text

    text, file = recipe_template(new), out if out is not None else Path(f"{new}.toml")
    if file.exists():
        raise ArgumentError(f"{file} already exists: choose another --out.")
    write_text(file, text)
    note(f"Edit {file}, then: {program()} train {file}")
    print_json({"file": str(file)}) if json else print_text(str(file))


def recipe_lines() -> str:
    """The built-in recipes, one line each."""
    with needed(extra="train", why="robust recipes"):
        from robust.train.recipe import Recipe, builtin_recipes

    recipes = [Recipe.load(name) for name in builtin_recipes()]
    width = max(len(recipe.name) for recipe in recipes)
    return "\n".join(f"{recipe.name:<{width}}  {recipe.description}" for recipe in recipes)
