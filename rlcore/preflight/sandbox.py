"""Whether this machine can confine the programs that a recipe's rewards would run."""

from rlcore.sandbox.probe import find_sandbox
from rlcore.sandbox.types import Level
from schemas.recipe import Recipe


def check_sandbox(recipe: Recipe) -> Level | None:
    """Return the level at which the recipe's rewards run programs here, None where none does.

    None also on an existing cluster, whose nodes find out themselves. Raises UserError when the
    level that the recipe asks for does not hold here.
    """
    runs_programs = any(function.name == "code" for function in recipe.reward.functions)
    if not runs_programs or recipe.hardware.ray_address is not None:
        return None
    return find_sandbox(recipe.reward.sandbox).level
