"""The fields of a deployment's run form that stand for keys of the recipe."""

from collections.abc import Mapping
from typing import Any

from schemas.errors import UserError

# Parameter of the flow rl-pipeline -> dotted key of the recipe.
FIELDS = {
    "seed": "seed",
    "iterations": "rl.iterations",
    "learning_rate": "rl.update.optimizer.lr",
    "prompts": "rl.rollout.prompts",
    "samples": "rl.rollout.samples",
}


def with_fields(overrides: Mapping[str, Any] | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides by dotted key, those that were given as ``fields`` included; a field
    that is None was left empty.

    >>> with_fields({"seed": 1}, {"iterations": 5, "prompts": None})
    {'seed': 1, 'rl.iterations': 5}

    Raises UserError where both give a key, and not the same value.
    """
    merged = dict(overrides or {})
    for name, value in fields.items():
        key = FIELDS[name]
        if value is None:
            continue
        if key in merged and merged[key] != value:
            raise UserError(
                f"{name} = {value!r} and overrides['{key}'] = {merged[key]!r} are the same key of"
                " the recipe; leave one of the two out"
            )
        merged[key] = value
    return merged
