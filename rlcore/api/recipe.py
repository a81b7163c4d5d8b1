"""Converts a config of the Python API to a recipe: the only place that maps its names to ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcore.api.configs import TrainingConfig
from rlcore.recipes.load import resolve_recipe
from schemas.errors import UserError
from schemas.presets import PRESETS
from schemas.recipe import Recipe
from schemas.rl import RLSection

MICRO_BATCH_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Task:
    """The inputs of a run other than its config.

    ``context``: tokens of the model's context, None where it names none. ``longest_prompt``: in
    tokens. ``functions``: entries of ``reward.functions``; a callable passed by the caller appears
    by name only, as a record. ``prompts_file``: the Prompts table. ``resumable``: checkpoints are
    kept while it trains, so that another call can continue.
    """

    model_dir: Path
    context: int | None
    num_prompts: int
    longest_prompt: int
    prompts_file: str
    store: Path
    functions: Sequence[dict[str, Any]]
    reward_offset: float
    tracking: Mapping[str, Any]
    dtype: str
    threads: int
    resumable: bool


def recipe_of(config: TrainingConfig, task: Task) -> Recipe:
    """Return the recipe of ``config``: its algorithm's preset, what it sets, then its overrides.

    Raises UserError when lengths do not fit the model, the batch not the prompts, or an override
    breaks a rule of the recipe.
    """
    prompt_tokens = config.max_prompt_length or task.longest_prompt
    prompts, updates = batch_of(config, task.num_prompts)
    new_tokens, overlong = config.lengths(_room(task, prompt_tokens))
    max_tokens = max(16, prompt_tokens + new_tokens)
    policy_iterations = config.num_episodes or max(1, task.num_prompts // prompts)
    iterations = policy_iterations + config.warmup_iterations
    rl: dict[str, Any] = {
        "preset": config.preset,
        "iterations": iterations,
        "algorithm": config.algorithm() | _overlong(config.preset, overlong),
        "rollout": {
            "prompts": prompts,
            "samples": config.group_size,
            "temperature": config.temperature,
            "max_new_tokens": new_tokens,
        },
        "update": {
            "mini_batches": updates,
            "epochs": config.ppo_epochs,
            "optimizer": config.optimizer(updates * config.ppo_epochs),
        },
        "validation": {"every": iterations},
        "checkpoint": {
            "every": config.checkpoint_every if task.resumable else iterations,
            "keep_last": 1,
        },
    }
    if (critic := config.critic()) is not None:
        rl["critic"] = critic
    name = f"train-with-{config.preset}"
    tree = {
        "name": name,
        "seed": config.seed,
        "store": str(task.store),
        "model": {"path": str(task.model_dir), "dtype": task.dtype, "max_tokens": max_tokens},
        "data": {
            "sources": [{"kind": "file", "path": task.prompts_file}],
            "max_prompt_tokens": prompt_tokens,
            "deduplicate": "off",
        },
        "sft": {"enabled": False},
        "reward": {
            "functions": list(task.functions),
            "offset": task.reward_offset,
            "timeout_s": config.reward_timeout_s,
            "max_error_fraction": config.max_error_fraction,
            "max_timeout_fraction": config.max_timeout_fraction,
        },
        "rl": rl,
        "evaluate": {"samples": 1, "pass_k": [1], "max_new_tokens": new_tokens},
        "hardware": _hardware(config, task, max_tokens),
        "tracking": dict(task.tracking),
    }
    return resolve_recipe(name, tree, config.overrides)


def batch_of(config: TrainingConfig, num_prompts: int) -> tuple[int, int]:
    """Return prompts and optimizer steps per iteration; the steps divide the prompts.

    Numbers of the preset shrink to what ``num_prompts`` allow; numbers that are set do not. Raises
    UserError when those do not fit.
    """
    kind = type(config).__name__
    warmup = PRESETS[config.preset].get("critic", {}).get("warmup_iterations", 0)
    preset = RLSection(preset=config.preset, iterations=1 + warmup)
    prompts, updates = config.num_prompts_per_batch, config.num_gradient_updates
    if prompts is not None and prompts > num_prompts:
        raise UserError(
            f"{kind}.num_prompts_per_batch = {prompts} and train_prompts holds {num_prompts};"
            " lower it or give more prompts"
        )
    if prompts is None:
        prompts = min(preset.rollout.prompts, num_prompts)
        prompts -= prompts % min(updates or 1, prompts)
    if updates is None:
        most = min(preset.update.mini_batches, prompts)
        updates = next(n for n in range(most, 0, -1) if prompts % n == 0)
    if prompts % updates:
        raise UserError(
            f"{kind}.num_gradient_updates = {updates} does not divide the {prompts} prompts of an"
            f" iteration; set it to a divisor of {prompts}"
        )
    return prompts, updates


def _room(task: Task, prompt_tokens: int) -> int | None:
    if task.context is None:
        return None
    room = task.context - prompt_tokens
    if room < 1:
        raise UserError(
            f"the longest prompt may take {prompt_tokens} tokens and the model's context holds"
            f" {task.context}; shorten the prompts, lower max_prompt_length or take another model"
        )
    return room


def _overlong(preset: str, overlong: dict[str, int]) -> dict[str, Any]:
    return {"overlong": overlong or None} if preset == "dapo" else {}


def _hardware(config: TrainingConfig, task: Task, max_tokens: int) -> dict[str, Any]:
    return {
        "cluster": "in_process",
        "learner": {
            "threads": task.threads,
            "micro_batch_tokens": max(MICRO_BATCH_TOKENS, max_tokens),
            "gradient_checkpointing": config.gradient_checkpointing,
        },
        "rollout": {"engine": "transformers", "threads": task.threads},
    }
