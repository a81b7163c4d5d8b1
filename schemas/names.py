"""Names that several sections and processes agree on."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

REWARD_MODEL = "reward_model"  # the trained model among ``reward.functions``; also its stage
ENVIRONMENT = "environment"  # the environment's own rewards among ``reward.functions``
JUDGE = "judge"  # the judges among ``reward.functions``
PREFERENCE = "preference"  # the stage, its section, and the label of its policy in evaluations
BASE_MODEL = "base_model"  # the stage, its artifact and the role of it as a parent
WEIGHTS, AVERAGE = "weights", "average"  # metadata of a policy that is rl.update.ema's
RECORDS = "records"  # metadata of a result: the key of its checkpoints, where it is not its own


def brought_model(name: str) -> str | None:
    """Return NAME of a function ``reward_model:NAME``, which is an entry of ``reward_models``; None
    for any other."""
    kind, _, own = name.partition(":")
    return own if kind == REWARD_MODEL and own else None


def is_model(name: str) -> bool:
    """Return whether a function of the reward is a reward model, trained by the run or brought."""
    return name == REWARD_MODEL or brought_model(name) is not None


def by_workers(name: str) -> bool:
    """Return whether a function of the reward is called in reward workers: all but reward models,
    and the rewards that an environment gave while the episode went on."""
    return name != ENVIRONMENT and not is_model(name)


def split_function(name: str) -> tuple[str, str]:
    """Return module and function of 'package.module:function' or 'path/to/file.py:function'."""
    module, _, function = name.rpartition(":")
    return module, function


def is_file(module: str) -> bool:
    """Return whether a function's module is named by its file."""
    return module.endswith(".py")


def portable_name(name: str) -> str:
    """Return the name of a reward function wherever its file lies: 'file.py:function'.

    Metrics and cache keys hold this; the file's content is in the keys by its digest.
    """
    module, function = split_function(name)
    return f"{PurePath(module).name}:{function}" if is_file(module) else name


def term_name(name: str, options: Mapping[str, Any]) -> str:
    """Return the name of a term of the reward in parts and metrics: that of its function, and of
    its judge where it asks one; a file's wherever it lies."""
    return f"{name}/{options.get('judge')}" if name == JUDGE else portable_name(name)


def ranking_term(ranked_by: str) -> str:
    """Return the term of the reward, as ``term_name``, that ``ranked_by`` of preferences names:
    'judge:NAME' is that of a judge, everything else the name of a function."""
    kind, _, name = ranked_by.partition(":")
    return term_name(JUDGE, {"judge": name}) if kind == JUDGE and name else portable_name(ranked_by)
