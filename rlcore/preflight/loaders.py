"""Loads one function of the user in the process that looks at it; light, as each start imports it.

Each loader raises UserError when the function cannot be called as the run would call it.
"""

from collections.abc import Mapping
from typing import Any


def load_reward(name: str, options: Mapping[str, Any], path: str) -> None:
    """Load a reward function here. Raises UserError when it cannot be called."""
    from rlcore.rewards.registry import build

    build((name, 1.0, options), path.removesuffix(".name"))


def load_batch_reward(name: str, options: Mapping[str, Any], path: str) -> None:
    """Load a reward function of all rows of a prompt here, as ``load_reward``."""
    from rlcore.rewards.registry import build

    build((name, 1.0, options), path.removesuffix(".name"), batch=True)


def load_advantage(name: str, options: Mapping[str, Any], path: str) -> None:
    """Load an advantage estimator here. Raises UserError when it cannot be called."""
    from rlcore.algorithms.advantages import find_estimator

    find_estimator(name, options, path)


def load_policy_loss(name: str, options: Mapping[str, Any], path: str) -> None:
    """Load a policy loss, which has no options, here. Raises UserError when it cannot be called."""
    from rlcore.algorithms.policy_loss import find_loss

    assert not options, "a policy loss has no options"
    find_loss(name, path)


def load_engine(name: str, options: Mapping[str, Any], path: str) -> None:
    """Load the class of a rollout engine here. Raises UserError when it is none."""
    from rlcore.engines.own_engine import find_engine

    assert not options, "an engine has no options"
    find_engine(name, path)
