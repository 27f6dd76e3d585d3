"""The built-in recipes, one TOML file each. `docs/recipes.md` describes them."""
