"""The functions that a recipe names, loaded once in a process of their own before the run."""

import os
from collections.abc import Mapping
from typing import Any

from rlcore.rewards.environment import environment_of
from rlcore.rewards.process import look_at_functions
from schemas.recipe import Recipe

_LOADERS = {
    "reward": "rlcore.preflight.loaders:load_reward",
    "batch_reward": "rlcore.preflight.loaders:load_batch_reward",
    "advantage": "rlcore.preflight.loaders:load_advantage",
    "policy_loss": "rlcore.preflight.loaders:load_policy_loss",
    "engine": "rlcore.preflight.loaders:load_engine",
}

ENGINE_S = 300.0  # an engine of somebody's own imports what vLLM does, which takes minutes at first


def check_functions(recipe: Recipe) -> None:
    """Raise UserError for a function of the user that does not exist, cannot be imported, takes
    other arguments than it is called with, or lacks one of its options; and for an engine's class
    that lacks a method.

    They are imported as reward functions are: in a child process that has the variables of
    ``reward.env`` and none of the user's keys.
    """
    functions = _functions_of(recipe)
    if functions:
        # On an existing cluster rewards run elsewhere, where the variables may be others.
        named = [name for name in recipe.reward.env if name in os.environ]
        look_at_functions(functions, environment=environment_of(named))


def _functions_of(recipe: Recipe) -> list[dict[str, Any]]:
    reward, algorithm = recipe.reward, recipe.rl.algorithm
    memory_bytes = None if reward.memory_gib is None else int(reward.memory_gib * 2**30)
    named: list[tuple[str, str, Mapping[str, Any], str]] = [
        (
            "batch_reward" if function.batch else "reward",
            function.name,
            function.options,
            f"reward.functions[{index}].name",
        )
        for index, function in enumerate(reward.functions)
    ]
    options = algorithm.advantage_options
    named += [
        ("advantage", algorithm.advantage, options, "rl.algorithm.advantage"),
        ("policy_loss", algorithm.policy_loss, {}, "rl.algorithm.policy_loss"),
        ("engine", recipe.hardware.rollout.engine, {}, "hardware.rollout.engine"),
    ]
    return [
        {
            "name": name,
            "options": dict(options),
            "path": path,
            "loader": _LOADERS[kind],
            "memory_bytes": memory_bytes if kind.endswith("reward") else None,
            "limit_s": ENGINE_S if kind == "engine" else None,
        }
        for kind, name, options, path in named
        if ":" in name
    ]
