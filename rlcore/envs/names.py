"""Environments of ours by name, and the code that a recipe's environment is."""

from schemas.recipe import Recipe

BUILTIN = {
    "calculator": "rlcore.envs.calculator:Calculator",
    "python": "rlcore.envs.python:Python",
    "text-game": "rlcore.envs.text_game:TextGame",
}


def environment_names(recipe: Recipe) -> list[str]:
    """Return the class of the recipe's environment as 'package.module:Class', none without one: its
    code decides results, as that of a reward function does."""
    if recipe.environment is None:
        return []
    return [BUILTIN.get(recipe.environment.name, recipe.environment.name)]
