"""The functions that a recipe names, loaded once in a process of their own before the run."""

import os
from collections.abc import Mapping
from typing import Any

from rlcore.algorithms.advantages import find_estimator
from rlcore.algorithms.policy_loss import find_loss
from rlcore.rewards.environment import environment_of
from rlcore.rewards.process import look_at_functions
from rlcore.rewards.registry import build
from schemas.recipe import Recipe

_LOADERS = {
    "reward": "rlcore.preflight.functions:load_reward",
    "batch_reward": "rlcore.preflight.functions:load_batch_reward",
    "advantage": "rlcore.preflight.functions:load_advantage",
    "policy_loss": "rlcore.preflight.functions:load_policy_loss",
    "engine": "rlcore.preflight.functions:load_engine",
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


# Called in the child process, where they are found by their names in ``_LOADERS``; each raises
# UserError when the function cannot be called as the run would call it.


def load_reward(name: str, options: Mapping[str, Any], path: str) -> None:
    """Load a reward function here. Raises UserError when it cannot be called."""
    build((name, 1.0, options), path.removesuffix(".name"))


def load_batch_reward(name: str, options: Mapping[str, Any], path: str) -> None:
    """Load a reward function of all rows of a prompt here, as ``load_reward``."""
    build((name, 1.0, options), path.removesuffix(".name"), batch=True)


def load_advantage(name: str, options: Mapping[str, Any], path: str) -> None:
    """Load an advantage estimator here. Raises UserError when it cannot be called."""
    find_estimator(name, options, path)


def load_policy_loss(name: str, options: Mapping[str, Any], path: str) -> None:
    """Load a policy loss, which has no options, here. Raises UserError when it cannot be called."""
    assert not options, "a policy loss has no options"
    find_loss(name, path)


def load_engine(name: str, options: Mapping[str, Any], path: str) -> None:
    """Load the class of a rollout engine here. Raises UserError when it is none."""
    from rlcore.engines.own_engine import find_engine  # with transformers, which no reward needs

    assert not options, "an engine has no options"
    find_engine(name, path)
