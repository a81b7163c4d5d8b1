"""A function by name: one of ours, or the user's as 'package.module:function'."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from schemas.errors import UserError, did_you_mean


def resolve(name: str, builtin: Mapping[str, Callable[..., Any]], where: str) -> Callable[..., Any]:
    """Return the function called ``name``; ``where`` is the dotted path shown in errors.

    Raises ``UserError`` with the nearest name when there is none. An error inside the user's module
    itself is not caught, so that its traceback is shown.
    """
    if ":" not in name:
        if name not in builtin:
            raise UserError(
                f"{where} = '{name}' is unknown; use one of {', '.join(builtin)} or "
                f"'package.module:function'{did_you_mean(name, builtin)}"
            )
        return builtin[name]
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name.isidentifier():
        raise UserError(f"{where} = '{name}' must be written 'package.module:function'")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Only the named module or a parent of it; an import that fails inside it is its own error.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise UserError(
            f"{where} = '{name}': there is no module '{error.name}'; "
            "put its folder on PYTHONPATH or install its package"
        ) from None
    function = vars(module).get(function_name)
    if not callable(function):
        near = did_you_mean(function_name, vars(module))
        raise UserError(f"{where} = '{name}': {module_name} has no {function_name}(){near}")
    return function
