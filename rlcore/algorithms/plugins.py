"""A function by name: one of ours, or the user's as 'package.module:function' or
'path/to/file.py:function'."""

from collections.abc import Callable, Mapping
from typing import Any

from rlcore.store.user_modules import check_module, import_function
from schemas.errors import UserError, did_you_mean


def resolve(name: str, builtin: Mapping[str, Callable[..., Any]], where: str) -> Callable[..., Any]:
    """Return the function called ``name``; ``where`` is the dotted path shown in errors.

    Raises ``UserError`` with the nearest name when there is none, and naming what failed, and
    where, when the user's module cannot be imported.
    """
    if ":" in name:
        check_module(name, where)
        return import_function(name, where)
    if name not in builtin:
        raise UserError(
            f"{where} = '{name}' is unknown; use one of {', '.join(builtin)}, or"
            " 'package.module:function' or 'path/to/file.py:function'"
            f"{did_you_mean(name, builtin)}"
        )
    return builtin[name]
