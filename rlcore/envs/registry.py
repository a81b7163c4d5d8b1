"""Environments by name, each built for one episode, and the code that a recipe's environment is.

A name is one of ``BUILTIN``, or ``package.module:Class`` or ``path/to/file.py:Class`` for yours
(``types`` says what it needs); ``mcp`` has its own module. To add one: its module in this
package, its entry in ``BUILTIN``, its name in ``schemas.environment``.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlcore.envs.tools import ToolEnvironment, schemas_of
from rlcore.envs.types import Environment, as_messages
from rlcore.store.user_modules import check_module, import_function
from schemas.environment import MCP
from schemas.errors import UserError, did_you_mean
from schemas.names import is_file, split_function
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


PATH = "environment.name"


class Kind:
    """The class of an environment, and its options; ``build`` makes one for an episode."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        """Load the class. Raises UserError when it does not exist, cannot be imported, takes other
        options, or is no environment."""
        check_name(name)
        target = BUILTIN.get(name, name)
        loaded, found = import_function(target, PATH), split_function(target)[1]
        if not inspect.isclass(loaded):
            raise UserError(f"{PATH} = {name!r} is a function, not a class; name a class")
        try:
            inspect.signature(loaded).bind(**options)
        except TypeError as error:
            raise UserError(f"environment.options: {found}() {error}; {_options(loaded)}") from None
        self._class: type = loaded
        self._options = dict(options)
        self._is_stepped = hasattr(loaded, "step")
        self._name = name

    @property
    def role(self) -> str:
        """Return the role in which it answers when a step took too long."""
        return "user" if self._is_stepped else "tool"

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Return the JSON schemas of the tools, none of a game. Raises UserError for tools that no
        policy could be told of."""
        return () if self._is_stepped else schemas_of(self._class, self._name)

    def build(self) -> Environment:
        """Return a new environment."""
        built = self._class(**self._options)
        return built if self._is_stepped else ToolEnvironment(built)

    def demonstration(self, seed: int) -> list[dict[str, str]]:
        """Return the messages of an example to learn from, drawn by ``seed``.

        Raises UserError where the class makes none.
        """
        make = getattr(self._class(**self._options), "demonstration", None)
        if make is None:
            raise UserError(
                "data.sources: demonstrations are asked for, and the environment has no"
                " demonstration(seed); set demonstrations to 0 or add the method"
            )
        return [dict(message) for message in as_messages(make(seed), "demonstration")]


def check_name(name: str) -> None:
    """Raise UserError when ``name`` is no environment of ours and no class that exists; nothing of
    the user's is imported."""
    if ":" in name:
        check_module(name, PATH)
    elif name not in BUILTIN:
        raise UserError(
            f"{PATH} = {name!r} is not an environment; there are {', '.join(BUILTIN)}, mcp,"
            f" 'package.module:Class' and 'path/to/file.py:Class'{did_you_mean(name, BUILTIN)}"
        )


def _options(loaded: Callable[..., Any]) -> str:
    known = [name for name in inspect.signature(loaded).parameters if name != "self"]
    return f"its options are {', '.join(known)}" if known else "it takes none"
