"""Scripted metric streams: a run that learns, and one thing gone wrong in it."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flows.paths import RECIPES
from rlcore.diagnostics.watch import Diagnostics, Finding
from rlcore.recipes.load import load_recipe
from schemas.recipe import Recipe

LENGTH = 100
QUICKSTARTS = ("", "-ppo", "-dapo", "-rloo", "-gspo", "-gepo", "-vapo", "-remax")
Metrics = dict[str, float]


def recipe(name: str = "quickstart", **overrides: Any) -> Recipe:
    """Return a recipe of flows/recipes; ``rl__iterations=5`` overrides rl.iterations."""
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_recipe(name, dotted, directory=RECIPES)


def healthy(length: int = LENGTH, seed: int = 0) -> list[Metrics]:
    """Return iterations 0..``length`` of a run that learns: accuracy .55 -> .995 while entropy
    falls .3 -> .05, with the noise of 64 x 8 samples."""
    rng = np.random.default_rng(seed)
    stream: list[Metrics] = [{"val/accuracy": 0.55}]
    for iteration in range(1, length + 1):
        learnt = 1 - math.exp(-3.5 * iteration / length)
        accuracy = float(np.clip(0.55 + 0.46 * learnt + rng.normal(0, 0.02), 0, 0.996))
        metrics = {
            "critic/accuracy": accuracy,
            "critic/score/mean": accuracy,
            "critic/score/max": 1.0,
            "critic/score/min": 0.0,
            "critic/zero_std_group_fraction": float(np.clip(0.2 + 0.7 * learnt, 0, 0.97)),
            "critic/never_right_fraction": 0.1 * (1 - learnt),
            "critic/vf_explained_var": 0.6 * learnt + rng.normal(0, 0.05),
            "critic/vf_loss": 0.12 * (1.05 - learnt),
            "critic/grad_norm": 0.8 * (1.1 - learnt),
            "critic/optimizer_steps": 2.0,
            "critic/zero_gradient_steps": 0.0,
            "critic/skipped_steps": 0.0,
            "reward/error_fraction": 0.0,
            "reward/timeout_fraction": 0.0,
            "reward/judge_failed_fraction": 0.0,
            "reward/no_answer_fraction": 0.35 * (1 - learnt),
            "train/filtered_ratio": 0.3,
            "train/num_gen_batches": 1.0,
            "actor/entropy": 0.05 + 0.25 * (1 - learnt),
            "actor/ppo_kl": abs(rng.normal(0, 2e-3)),
            "actor/ref_kl": 0.02 * learnt + abs(rng.normal(0, 1e-3)),
            "actor/pg_clipfrac": 0.05,
            "actor/ratio_mean": 1 + rng.normal(0, 1e-3),
            "actor/ratio_max": 1.8,
            "actor/grad_norm": 0.4 * (1.1 - learnt),
            "actor/lr": 3e-4 * (1 - 0.9 * iteration / length),
            "actor/optimizer_steps": 2.0,
            "actor/zero_gradient_steps": 0.0,
            "actor/skipped_steps": 0.0,
            "training/rollout_logprobs_gap_max": 2e-5,
            "training/rollout_mult_prob_error": 1.000001,
            "response_length/mean": 20.0 + rng.normal(0, 0.5),
            "response_length/max": 39.0,
            "response_length/clip_ratio": 0.05,
            "response/aborted_ratio": 0.0,
            "response/empty_ratio": 0.0,
        }
        if iteration % 10 == 0:
            metrics["val/accuracy"] = min(0.996, accuracy + 0.02)
        stream.append(metrics)
    return stream


def broken(change: Callable[[int, Metrics], Metrics], *, start: int, end: int) -> list[Metrics]:
    """Return a healthy stream whose iterations ``start`` .. ``end`` - 1 are changed."""
    stream = healthy()
    return [
        {**metrics, **change(iteration, metrics)} if start <= iteration < end else metrics
        for iteration, metrics in enumerate(stream)
    ]


# (actor/pg_clipfrac, actor/pg_clipfrac_first_step) of updates of two quickstart recipes, from the
# SFT policy on, on the trajectories that an RL run of quickstart recorded.
RECORDED = {
    "-gspo": [(0.585, 0.0), (0.576, 0.0), (0.678, 0.0), (0.675, 0.0), (0.703, 0.0)],
    "-gepo": [(0.037, 0.062), (0.040, 0.025)],
}


def fixed(**values: float) -> Callable[[int, Metrics], Metrics]:
    """Set metrics; ``actor__lr`` stands for actor/lr."""
    named = {name.replace("__", "/"): value for name, value in values.items()}
    return lambda iteration, metrics: named


def watch(config: Recipe, stream: list[Metrics]) -> tuple[list[str], list[Finding]]:
    """Return the lines logged and the findings of a whole run."""
    said: list[str] = []
    diagnostics = Diagnostics(config, log=said.append)
    for iteration, metrics in enumerate(stream):
        diagnostics.observe(iteration, metrics)
    return said, diagnostics.findings
