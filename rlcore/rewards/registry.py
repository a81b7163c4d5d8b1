"""Reward functions by name, and their weighted sum.

A name is one of ``BUILTIN``, or ``package.module:function`` or ``path/to/file.py:function`` for a
user's function (``signatures`` says how it is called), plain or a coroutine. It returns a float, a
dict with ``score`` (and ``acc``, ``answer``, ``detail``), or None for what cannot be scored.
"""

import asyncio
import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rlcore.rewards import (
    arithmetic,
    code,
    gsm8k,
    instructions,
    length,
    math_answer,
    response_format,
)
from rlcore.rewards.calls import AsyncFunction, Function, SyncFunction
from rlcore.rewards.link import check_environment
from rlcore.rewards.signatures import check_batch, is_coroutine_function, takes_ground_truth
from rlcore.rewards.types import Failure, Reward, RewardRow, Scorer
from rlcore.sandbox.probe import find_sandbox
from rlcore.store.fingerprint import module_digest
from rlcore.store.inputs import Found, Read
from rlcore.store.user_modules import check_module, find_module, import_function
from rlcore.store.versions import VERSIONS, code_digest
from schemas.errors import UserError, did_you_mean
from schemas.names import (
    ENVIRONMENT,
    JUDGE,
    REWARD_MODEL,
    is_model,
    portable_name,
    split_function,
    term_name,
)

if TYPE_CHECKING:  # scoring processes do not import the recipe's sections
    from schemas.recipe import Recipe
    from schemas.rl import RewardSection

# Each has ``scorer``, which makes the function of its options.
BUILTIN: dict[str, ModuleType] = {
    "arithmetic": arithmetic,
    "code": code,
    "gsm8k": gsm8k,
    "instructions": instructions,
    "math": math_answer,
    "format": response_format,
    "length": length,
}
# Options that are no options of the recipe: what a built-in function reads of its section.
OF_SECTION = {"code": {"sandbox": "sandbox", "row_timeout_s": "timeout_s"}}
# One entry of the recipe's ``reward.functions``: name, weight, options.
Spec = tuple[str, float, Mapping[str, Any]]


def specs_of(section: "RewardSection") -> list[Spec]:
    """Return the functions of ``section``, each with what it reads of the section as options.

    Raises UserError for such a value among a function's own options.
    """
    specs: list[Spec] = []
    for index, function in enumerate(section.functions):
        taken = OF_SECTION.get(function.name, {})
        for option, key in taken.items():
            if option in function.options:
                raise UserError(
                    f"reward.functions[{index}].options.{option} is for all functions; set"
                    f" reward.{key}"
                )
        options = {option: getattr(section, key) for option, key in taken.items()}
        specs.append((function.name, function.weight, {**function.options, **options}))
    return specs


def reader_of(name: str) -> Callable[..., None] | None:
    """Return what raises UserError for a ground truth that the function ``name`` cannot read, given
    its options; None where it is no function of ours, or needs none."""
    return getattr(BUILTIN.get(name), "check_truth", None)


def check_functions(specs: Sequence[Spec]) -> None:
    """Raise UserError for a spec that cannot work, without importing the user's modules.

    Checks names, options of the built-in functions, duplicates, and that modules exist.
    """
    names = [term_name(name, options) for name, _, options in specs]
    for index, (name, _, options) in enumerate(specs):
        path = f"reward.functions[{index}]"
        if names.index(names[index]) != index:
            raise UserError(f"{path}.name = {names[index]!r} is listed twice; add the weights up")
        if is_model(name):
            if options:
                raise UserError(f"{path}.options: '{name}' takes none; leave them out")
        elif name == ENVIRONMENT:
            _check_environment_options(options, path)
        elif ":" in name:
            check_module(name, f"{path}.name")
        elif name != JUDGE:  # the recipe's rules between reward and judges have looked at it
            # Only option values need the factory, which may import a large library.
            (_builtin if options else _check_options)(name, options, path)


def _check_environment_options(options: Mapping[str, Any], path: str) -> None:
    for option, value in options.items():
        if option != "success_at":
            raise UserError(
                f"{path}.options.{option} is not an option of '{ENVIRONMENT}'; it takes success_at"
                f"{did_you_mean(option, ['success_at'])}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{path}.options.success_at = {value!r} must be a number")


def check_recipe_functions(recipe: "Recipe") -> None:
    """Raise UserError for a function named by the recipe that cannot work: rewards by
    ``check_functions`` and, unless they run on an existing cluster, by their environment; the
    user's estimator and policy loss by whether their modules exist."""
    check_functions(specs_of(recipe.reward))
    if recipe.hardware.ray_address is None:
        check_environment(recipe.reward.env)
    algorithm = recipe.rl.algorithm
    for path, name in (("advantage", algorithm.advantage), ("policy_loss", algorithm.policy_loss)):
        if ":" in name:
            check_module(name, f"rl.algorithm.{path}")


def code_digests(names: Sequence[str]) -> dict[str, Read]:
    """Return the digest of each user function's module, by the function's dotted path, and of each
    environment of ours that of its version.

    A changed reward makes it a different run, and so does a change in the module's package
    (``module_digest``).
    """
    digests = {}
    for name in names:
        if name in VERSIONS:
            digests[name] = Read(code_digest(name), list)
        elif ":" in name:
            spec = find_module(split_function(name)[0])
            if spec is not None and spec.origin is not None:
                digest = module_digest(spec.name, Path(spec.origin))
                key = portable_name(name)
                while digests.get(key, digest) != digest:  # files of one name in two folders
                    key += "'"
                digests[key] = Read(digest, partial(list, [Found(spec.origin, digest)]))
    return digests


def build(name: str, options: Mapping[str, Any], path: str, batch: bool = False) -> Function:
    """Return one function, ready for its first row.

    ``path``: where the recipe names it; ``batch``: it is called with all rows of a prompt. Raises
    UserError when the function cannot be loaded.
    """
    if name == "code":
        find_sandbox(options.get("sandbox", "auto"))
    if ":" in name:
        return _user_function(name, options, path, batch)
    scorer = _builtin(name, options, path)
    return SyncFunction(lambda rows: [scorer(row) for row in rows], lambda row, reward: reward)


def combine(row: RewardRow, rewards: Sequence[tuple[str, float, Reward]]) -> Reward:
    """Return the weighted sum of (name, weight, reward) as one reward with its parts.

    Outcome, correctness and answer are those of the first function that checks correctness;
    functions with a weight come before those of weight 0, whose verdict is reported only
    (``counts`` is False). A failure of a function of weight 0 is recorded separately, and the row
    keeps its score.
    """
    counted = [r for _, weight, r in rewards if weight]
    watching = [(name, r) for name, weight, r in rewards if not weight]
    lost = ((name, r) for name, weight, r in rewards if weight and r.score is None)
    name_of_failed, failed = next(lost, ("", None))
    said = [*counted, *(r for _, r in watching if r.score is not None)]
    verdicts = [r for r in said if r.correct is not None]
    verdict = failed or (verdicts or said or [Reward.of(row, 0.0)])[0]
    values: dict[str, float] = {}
    for name, _, reward in rewards:
        values.update({f"{name}/{key}": value for key, value in reward.parts.items()})
        if reward.score is not None:
            values[name] = reward.score
    detail = "; ".join(reward.detail for reward in said if reward.detail)
    if failed is not None:
        is_named = len(rewards) == 1 or name_of_failed in failed.detail
        detail = failed.detail if is_named else f"{name_of_failed}: {failed.detail}"
    return Reward(
        row.trajectory_id,
        verdict.outcome,
        None if failed else sum(w * r.score for _, w, r in rewards if w and r.score is not None),
        correct=None if failed else verdict.correct,
        counts=verdict.correct is None or any(verdict is r for r in counted),
        parts=values,
        detail=detail,
        answer=verdict.answer,
        failures={name: Failure(r.outcome, r.detail) for name, r in watching if r.score is None},
        verdicts={name: said for _, _, r in rewards for name, said in r.verdicts.items()},
    )


def _check_options(name: str, options: Mapping[str, Any], path: str) -> None:
    if name not in BUILTIN:
        raise UserError(
            f"{path}.name = {name!r} is not a reward function; there are {', '.join(BUILTIN)}, "
            f"{REWARD_MODEL}, {ENVIRONMENT}, {JUDGE}, 'package.module:function' and"
            " 'path/to/file.py:function'"
            f"{did_you_mean(name, (*BUILTIN, REWARD_MODEL, ENVIRONMENT, JUDGE))}"
        )
    known = inspect.signature(BUILTIN[name].scorer).parameters
    shown = [option for option in known if option not in OF_SECTION.get(name, {})]
    for option in options:
        if option not in known:
            raise UserError(
                f"{path}.options.{option} is not an option of {name!r}; it takes "
                f"{', '.join(shown) or 'none'}{did_you_mean(option, shown)}"
            )
    for option, parameter in known.items():
        if parameter.default is parameter.empty and option not in options:
            raise UserError(f"{path}.options.{option} is missing, and {name!r} needs it; add it")


def _builtin(name: str, options: Mapping[str, Any], path: str) -> Scorer:
    _check_options(name, options, path)
    try:
        return BUILTIN[name].scorer(**options)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _user_function(name: str, options: Mapping[str, Any], path: str, batch: bool) -> Function:
    function = import_function(name, f"{path}.name")
    is_async = is_coroutine_function(function)
    if batch:
        check_batch(function, options, name, path)
        finish = asyncio.Runner().run if is_async else lambda result: result
        return SyncFunction(
            lambda rows: finish(function([batch_row(row) for row in rows], **options)), reward_of
        )
    rich = takes_ground_truth(function, options, name, path)

    def arguments(row: RewardRow) -> tuple[Any, ...]:
        if rich:
            return row.data_source, row.response, row.ground_truth, _extra_info(row)
        if row.prompt is None:
            raise UserError(f"{name} takes (prompt, response), and the row has no prompt text")
        return row.prompt, row.response

    async def score(row: RewardRow) -> Reward:
        return reward_of(row, await function(*arguments(row), **options))

    if is_async:
        return AsyncFunction(score)
    return SyncFunction(
        lambda rows: [function(*arguments(row), **options) for row in rows], reward_of
    )


def batch_row(row: RewardRow) -> dict[str, Any]:
    """Return what a batch function is given of a row."""
    return {
        "uid": row.group,
        "data_source": row.data_source,
        "prompt": row.prompt,
        "solution": row.response,
        "ground_truth": row.ground_truth,
        "extra_info": _extra_info(row),
    }


def _extra_info(row: RewardRow) -> dict[str, Any]:
    """Return the row's further columns, and under ``turns`` what followed the prompt in an
    environment: messages of role and content."""
    return {**row.extra_info, "turns": list(row.turns)} if row.turns else dict(row.extra_info)


def reward_of(row: RewardRow, result: Any) -> Reward:
    """Convert the result of a user's function to a Reward: a number, a dict with ``score``, or
    None.

    Raises UserError for anything else, NaN and infinity included.
    """
    if result is None:
        return Reward.lost(row, "the reward function returned None")
    if not isinstance(result, Mapping):
        return Reward.of(row, _finite(result, "the reward function returned"))
    result = {str(key): plain(value) for key, value in result.items()}
    if "score" not in result:
        raise UserError(f"the reward function returned a dict without 'score': {sorted(result)}")
    score = _finite(result["score"], "the reward function returned score")
    answer = result.get("answer", result.get("pred"))
    others = {key: value for key, value in result.items() if key not in ("score", "acc", "detail")}
    parts = {key: float(value) for key, value in others.items() if isinstance(value, numbers.Real)}
    return Reward.of(
        row,
        score,
        _verdict(result.get("acc")),
        parts={key: value for key, value in parts.items() if math.isfinite(value)},
        detail=str(result.get("detail") or ""),
        answer=None if answer is None else str(answer),
    )


def plain(value: Any) -> Any:
    """Return a number of numpy, also as an array without axes, as Python's; else ``value``."""
    of_numpy = type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0
    return value.item() if of_numpy else value


def _verdict(value: Any) -> bool | None:
    """Return whether ``acc`` says that a response is right. Raises UserError for what is neither a
    bool nor 0 or 1: text would count as true."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, numbers.Real) and value in (0, 1):
        return value == 1
    raise UserError(
        f"the reward function returned acc {str(value)[:80]!r} of type {type(value).__name__},"
        " which is neither a bool nor 0 or 1"
    )


def _finite(value: Any, what: str) -> float:
    value = plain(value)
    if isinstance(value, numbers.Real) and math.isfinite(value):
        return float(value)
    kind = "" if isinstance(value, numbers.Real | str) else f" of type {type(value).__name__}"
    remedy = "; return a float" if kind else ""
    raise UserError(f"{what} {str(value)[:80]!r}{kind}, which is not a finite number{remedy}")
