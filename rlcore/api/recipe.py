"""Converts a config of the Python API to a recipe: the only place that maps its names to ours."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlcore.api.configs import (
    ApiConfig,
    DAPOConfig,
    GRPOConfig,
    PPOConfig,
    TrainingConfig,
    VAPOConfig,
)
from rlcore.recipes.load import resolve_recipe, set_key
from schemas.errors import UserError
from schemas.presets import PRESETS
from schemas.recipe import Recipe
from schemas.rl import RLSection

MICRO_BATCH_TOKENS = 4096
# Field of a config -> the key of a recipe that it sets; what several say: ``_settings``.
KEYS = {
    "group_size": "rl.rollout.samples",
    "temperature": "rl.rollout.temperature",
    "ppo_epochs": "rl.update.epochs",
    "clip_eps_low": "rl.algorithm.clip_low",
    "clip_eps_high": "rl.algorithm.clip_high",
    "gamma": "rl.algorithm.gae.gamma",
    "gae_lambda": "rl.algorithm.gae.lam",
    "lambda_critic": "rl.algorithm.gae.lam_critic",
    "lambda_policy_alpha": "rl.algorithm.gae.length_adaptive_alpha",
    "learning_rate": "rl.update.optimizer.lr",
    "actor_learning_rate": "rl.update.optimizer.lr",
    "warmup_ratio": "rl.update.optimizer.schedule.warmup_ratio",
    "critic_learning_rate": "rl.critic.optimizer.lr",
    "value_warmup_steps": "rl.critic.warmup_iterations",
    "reward_timeout_s": "reward.timeout_s",
    "max_error_fraction": "reward.max_error_fraction",
    "max_timeout_fraction": "reward.max_timeout_fraction",
    "gradient_checkpointing": "hardware.learner.gradient_checkpointing",
}


def recipe_of(
    config: TrainingConfig,
    *,
    model_dir: Path,
    context: int | None,
    num_prompts: int,
    longest_prompt: int,
    prompts_file: str,
    store: str,
    functions: Sequence[dict[str, Any]],
    reward_offset: float,
    tracking: Mapping[str, Any],
    resumable: bool,
) -> Recipe:
    """Return the recipe of ``config``: its algorithm's preset, what it sets, then its overrides.

    ``context``: tokens of the model's context, None where it names none. ``longest_prompt``: in
    tokens. ``functions``: entries of ``reward.functions``; a callable passed by the caller appears
    by name only, as a record. ``prompts_file``: the Prompts table. ``resumable``: checkpoints are
    kept while it trains, so that another call can continue. Raises UserError when lengths do not
    fit the model, the batch not the prompts, or an override breaks a rule of the recipe.
    """
    prompt_tokens = config.max_prompt_length or longest_prompt
    prompts, updates = batch_of(config, num_prompts)
    new_tokens, overlong = config.lengths(_room(context, prompt_tokens))
    iterations = config.num_episodes or max(1, num_prompts // prompts)
    iterations += config.model_dump().get("value_warmup_steps", 0)
    tree = in_process(
        config,
        f"train-with-{config.preset}",
        model=model_dir,
        store=store,
        rows=prompts_file,
        max_tokens=max(16, prompt_tokens + new_tokens),
    )
    tree["data"] |= {"max_prompt_tokens": prompt_tokens, "deduplicate": "off"}
    tree |= {
        "reward": {"functions": list(functions), "offset": reward_offset},
        "rl": {
            "preset": config.preset,
            "iterations": iterations,
            "rollout": {"prompts": prompts, "max_new_tokens": new_tokens},
            "update": {"mini_batches": updates},
            "validation": {"every": iterations},
            "checkpoint": {
                "every": config.checkpoint_every if resumable else iterations,
                "keep_last": 1,
            },
        },
        "evaluate": {"samples": 1, "pass_k": [1], "max_new_tokens": new_tokens},
        "tracking": dict(tracking),
    }
    for key, value in _settings(config, updates, overlong).items():
        set_key(tree, key, value)
    return resolve_recipe(tree["name"], tree, config.overrides)


def in_process(
    config: ApiConfig, name: str, *, model: Path, store: str, rows: str, max_tokens: int
) -> dict[str, Any]:
    """Return what all recipes of this API have: a model, the file ``rows``, no SFT, one process."""
    import torch

    threads = config.threads or torch.get_num_threads()
    dtype = config.dtype or ("bfloat16" if torch.cuda.is_available() else "float32")
    return {
        "name": name,
        "seed": config.seed,
        "store": store,
        "model": {"path": str(model), "dtype": dtype, "max_tokens": max_tokens},
        "data": {"sources": [{"kind": "file", "path": rows}]},
        "sft": {"enabled": False},
        "hardware": {
            "cluster": "in_process",
            "learner": {
                "threads": threads,
                "micro_batch_tokens": max(MICRO_BATCH_TOKENS, max_tokens),
            },
            "rollout": {"engine": "transformers", "threads": threads},
        },
    }


def _settings(config: TrainingConfig, updates: int, overlong: dict[str, int]) -> dict[str, Any]:
    """Return what the fields of ``config`` set, by key; ``updates``: those of an iteration's epoch,
    ``overlong``: the section, {} where it is off."""
    fields, algorithm = config.model_dump(), "rl.algorithm"
    found = {key: fields[name] for name, key in KEYS.items() if fields.get(name) is not None}
    if "clip_eps" in fields:
        found |= {f"{algorithm}.clip_{side}": fields["clip_eps"] for side in ("low", "high")}
    if isinstance(config, GRPOConfig | PPOConfig):
        where = "loss" if isinstance(config, GRPOConfig) else "reward"
        kl = {"where": where, "coef": config.beta} if config.beta else {"where": "none"}
        found[f"{algorithm}.kl"] = kl
    if isinstance(config, VAPOConfig):
        weight = config.positive_lm_weight * config.use_positive_lm_loss
        found[f"{algorithm}.positive_nll.coef"] = weight
    if isinstance(config, DAPOConfig):
        dynamic = {"on_exhausted": config.on_exhausted} if config.use_dynamic_sampling else None
        found[f"{algorithm}.dynamic_sampling"] = dynamic
        found[f"{algorithm}.overlong"] = overlong or None
        if config.warmup_ratio is None:
            steps = 20 * updates * config.ppo_epochs
            found["rl.update.optimizer.schedule.warmup_steps"] = steps
    return found


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


def _room(context: int | None, prompt_tokens: int) -> int | None:
    if context is None:
        return None
    room = context - prompt_tokens
    if room < 1:
        raise UserError(
            f"the longest prompt may take {prompt_tokens} tokens and the model's context holds"
            f" {context}; shorten the prompts, lower max_prompt_length or take another model"
        )
    return room
