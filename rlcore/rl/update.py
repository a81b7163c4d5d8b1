"""The update phase: recorded advantages in, one optimizer step per mini-batch."""

import numpy as np
import polars as pl

from rlcore.algorithms.objective import PolicyObjective
from rlcore.learner.schedule import optimizer_lr
from rlcore.learner.spec import UpdateRequest
from rlcore.ragged import to_arrays
from rlcore.rl.batch import sequences_of
from rlcore.seeds import stream_seed
from schemas.recipe import Recipe
from schemas.rl import Algorithm, RLSection


def update_request(
    rollouts: pl.DataFrame,
    advantages: pl.DataFrame,
    *,
    recipe: Recipe,
    version: int,
    batch_digest: str,
) -> UpdateRequest:
    """Return what the learner is asked to do with one iteration's batch.

    Mini-batches are cut by prompt, whole groups each (SPEC L4), in every epoch afresh when
    shuffled. ``version`` counts updates, so the learning rate of step i is a function of the
    recipe and version.
    """
    joined = rollouts.join(
        advantages, on="trajectory_id", how="left", maintain_order="left", validate="1:1"
    )
    per_token = {
        "advantages": to_arrays(joined["advantages"]),
        "old_logprobs": to_arrays(joined["old_logprobs"]),
        "rollout_logprobs": to_arrays(joined["sampler_logprobs"]),
    }
    if recipe.rl.algorithm.kl.uses_reference:
        per_token["ref_logprobs"] = to_arrays(joined["ref_logprobs"])
    sequences = sequences_of(rollouts, per_token)
    update = recipe.rl.update
    uids = rollouts["uid"].to_numpy()
    batches = [
        sequences.take(rows)
        for epoch in range(update.epochs)
        for rows in mini_batch_rows(
            uids,
            update.mini_batches,
            shuffle_seed=stream_seed(recipe.seed, "mini-batches", version, epoch)
            if update.shuffle
            else None,
        )
    ]
    first_step = version * len(batches)
    return UpdateRequest(
        version=version,
        batch_digest=batch_digest,
        mini_batches=batches,
        objective=policy_objective(recipe.rl),
        lrs=[
            optimizer_lr(update.optimizer, first_step + step, recipe.rl.iterations * len(batches))
            for step in range(len(batches))
        ],
    )


def mini_batch_rows(uids: np.ndarray, count: int, *, shuffle_seed: int | None) -> list[np.ndarray]:
    """Return ``count`` arrays of row numbers that never split a prompt's group.

    Prompts keep the order of their first row unless ``shuffle_seed`` permutes them.
    """
    _, first, group = np.unique(uids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    if shuffle_seed is not None:
        order = np.random.default_rng(shuffle_seed).permutation(order)
    return [np.flatnonzero(np.isin(group, part)) for part in np.array_split(order, count)]


def policy_objective(rl: RLSection) -> PolicyObjective:
    """Return the loss that the algorithm's axes describe."""
    algorithm: Algorithm = rl.algorithm
    return PolicyObjective(
        clip_low=algorithm.clip_low,
        clip_high=algorithm.clip_high,
        clip_dual=algorithm.clip_dual,
        aggregation=algorithm.aggregation,
        horizon=rl.rollout.max_new_tokens,
        temperature=rl.rollout.temperature,
        ratio_level=algorithm.ratio_level,
        kl_estimator=algorithm.kl.estimator,
        kl_coef=algorithm.kl.coef if algorithm.kl.where == "loss" else 0.0,
        entropy_coef=algorithm.entropy_coef or None,
        importance_level=algorithm.importance_correction.level,
        importance_cap=algorithm.importance_correction.cap,
        on_policy=rl.update.mini_batches * rl.update.epochs == 1,
        skip_zero_advantage=rl.update.skip_zero_advantage,
    )
