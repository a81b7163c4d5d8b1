"""Environments of ours by name, and the code that a recipe's environment is."""

from schemas.environment import MCP
from schemas.names import is_file
from schemas.recipe import Recipe

SERVER_ENDED = 3  # exit code of an environment's process whose MCP server has ended
BUILTIN = {
    "calculator": "rlcore.envs.calculator:Calculator",
    "python": "rlcore.envs.python:Python",
    "text-game": "rlcore.envs.text_game:TextGame",
}


def environment_names(recipe: Recipe) -> list[str]:
    """Return the code that the recipe's environment is, none without one: a name of ``BUILTIN``, a
    class as 'package.module:Class', of an MCP server each Python file of its command as
    'file.py:mcp'. It decides results, as that of a reward function does."""
    environment = recipe.environment
    if environment is None:
        return []
    if environment.name == MCP:
        return [f"{word}:{MCP}" for word in environment.command if is_file(word)]
    return [environment.name]
