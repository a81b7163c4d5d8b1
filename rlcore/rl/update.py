"""The requests of an update: which rows each optimizer step trains on, with which objective and
learning rate, for policy and critic."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from rlcore.algorithms.corrections import SUMS, correction_metrics
from rlcore.algorithms.losses import group_log_expectation
from rlcore.algorithms.objective import PolicyObjective, SftObjective, ValueObjective
from rlcore.algorithms.seeds import stream_seed
from rlcore.learner.schedule import optimizer_lr
from rlcore.learner.spec import Term, UpdateRequest, UpdateResult
from rlcore.models.packing import Sequences
from rlcore.models.ragged import to_arrays
from rlcore.results.metrics import MEMORY
from rlcore.rl.batch import arrays_of, sequences_of
from schemas.optimizer import Optimizer
from schemas.outcomes import FinishReason
from schemas.recipe import Recipe
from schemas.rl import RLSection

Step = tuple[int, np.ndarray, Sequences]  # an optimizer step's number, its rows, and these rows


def policy_request(
    frame: pl.DataFrame,
    steps: Sequence[Step],
    *,
    recipe: Recipe,
    version: int,
    digest: str,
    ptx: Sequences | None,
) -> UpdateRequest:
    """Return what the policy's learner is asked to do in ``steps``, the ``policy_steps`` of
    ``frame``; ``digest`` names the recorded advantages.

    ``version`` counts policy updates, so the learning rate of a step is a function of the recipe
    and version. ``ptx``: what PPO-ptx draws from.
    """
    objective = policy_objective(recipe)
    mini_batches = []
    for step, rows, sequences in steps:
        terms = [Term(sequences, objective)]
        if recipe.rl.ptx is not None and ptx is not None:
            count = max(1, round(recipe.rl.ptx.sequences_per_sample * len(rows)))
            seed = stream_seed(recipe.seed, "ptx", iteration_of(frame), step)
            drawn = ptx.take(drawn_rows(len(ptx), count, seed))
            terms.append(Term(drawn, SftObjective(name="ptx"), coef=recipe.rl.ptx.coef))
        mini_batches.append(terms)
    return UpdateRequest(
        version=version,
        batch_digest=digest,
        mini_batches=mini_batches,
        lrs=step_rates(
            recipe.rl,
            recipe.rl.update.optimizer,
            done=version,
            updates=recipe.rl.actor_iterations,
            steps=[step for step, _, _ in steps],
        ),
        own_logprobs=recipe.scores_own_logprobs,
    )


def critic_request(
    steps: Sequence[Step], *, recipe: Recipe, version: int, digest: str
) -> UpdateRequest:
    """Return what the critic's learner is asked to do in ``steps``, its ``critic_steps``;
    ``version`` counts iterations, ``digest`` names the recorded advantages."""
    critic = recipe.rl.critic
    assert critic is not None, "a critic's update without a critic in the recipe"
    objective = ValueObjective(clip=critic.clip)
    return UpdateRequest(
        version=version,
        batch_digest=digest,
        mini_batches=[[Term(sequences, objective)] for _, _, sequences in steps],
        lrs=step_rates(
            recipe.rl,
            critic.optimizer,
            done=version,
            updates=recipe.rl.iterations,
            steps=[step for step, _, _ in steps],
        ),
    )


def iteration_of(frame: pl.DataFrame) -> int:
    """Return the iteration that sampled ``frame``, from 1. It seeds the shuffling, so that policy
    and critic cut the same mini-batches."""
    return int(frame["iteration"][0])


def update_metrics(name: str, request: UpdateRequest, result: UpdateResult) -> dict[str, float]:
    """Return the metrics of an update of ``name``, "actor" or "critic".

    ``<name>/optimizer_steps`` and the counts of steps that changed nothing are among them always,
    so that an update without a step differs from one that was not requested.
    ``actor/pg_clipfrac_first_step`` is of the first step, before a weight has moved; it is left out
    where no row of that step had an advantage. ``rollout_corr/*``: of ``correction_metrics``, from
    each step's sums, which are left out. ``perf/memory_gib/<name>``: the most that a rank has held.
    """
    counts = {
        f"{name}/optimizer_steps": float(len(request.mini_batches)),
        f"{name}/zero_gradient_steps": 0.0,
        f"{name}/skipped_steps": 0.0,
    }
    clipped = f"{name}/pg_clipfrac"
    first = {f"{clipped}_first_step": step[clipped] for step in result.steps[:1] if clipped in step}
    known = {key: value for key, value in result.metrics.items() if not key.startswith(SUMS)}
    memory = {f"{MEMORY}/{name}": result.peak_bytes / 2**30}
    return counts | first | known | correction_metrics(result.steps) | memory


def policy_steps(frame: pl.DataFrame, recipe: Recipe) -> list[Step]:
    """Return the optimizer steps of the policy's update on ``frame``, with every per-token field
    that its objective may read.

    A mini-batch without a token to train on (all truncated and masked, or aborted) makes none.
    """
    algorithm = recipe.rl.algorithm
    masks, sampler = to_arrays(frame["loss_mask"]), to_arrays(frame["sampler_logprobs"])
    per_token = {"advantages": to_arrays(frame["advantages"]), "rollout_logprobs": sampler}
    if (old := arrays_of(frame, "old_logprobs")) is not None:
        per_token["old_logprobs"] = old
    if algorithm.kl.where == "loss" and (ref := arrays_of(frame, "ref_logprobs")) is not None:
        per_token["ref_logprobs"] = ref
    if algorithm.ratio_level == "group":
        _, group = np.unique(frame["uid"].to_numpy(), return_inverse=True)
        per_token["group_log_expectation"] = _group_expectations(sampler, masks, group)
    if algorithm.positive_nll.coef > 0:
        positive = frame["positive"].fill_null(value=False).to_list()
        per_token["nll_weights"] = [
            np.full(len(mask), float(right)) * mask
            for mask, right in zip(masks, positive, strict=True)
        ]
    truncated = (frame["finish_reason"] == FinishReason.LENGTH.value).to_numpy()
    left_out = truncated & algorithm.mask_truncated
    steps = _steps(frame, recipe, sequences_of(frame, per_token), left_out)
    if algorithm.positive_nll.coef > 0:
        return [(step, rows, with_nll_weights(sequences)) for step, rows, sequences in steps]
    return steps


def critic_steps(frame: pl.DataFrame, recipe: Recipe) -> list[Step]:
    """Return the optimizer steps of the critic's update on ``frame``.

    A mini-batch of which no row has a score makes none.
    """
    known = frame["returns"].is_not_null().to_numpy()
    lengths = frame["token_ids"].list.len().to_list()
    returns = [
        values if ok else np.zeros(length, dtype=np.float32)
        for values, ok, length in zip(
            to_arrays(frame["returns"]), known.tolist(), lengths, strict=True
        )
    ]
    per_token = {"returns": returns, "old_values": to_arrays(frame["values"])}
    return _steps(frame, recipe, sequences_of(frame, per_token), ~known)


def _group_expectations(
    sampler: list[np.ndarray], masks: list[np.ndarray], group: np.ndarray
) -> list[np.ndarray]:
    """Return log E_q[q] of each row's group on every token (GEPO); 0 on aborted rows."""
    filled = np.array([mask.any() for mask in masks], dtype=bool)
    means = np.array(
        [row[mask].mean() for row, mask in zip(sampler, masks, strict=True) if mask.any()]
    )
    expectation = np.zeros(len(masks))
    expectation[filled] = group_log_expectation(means, group[filled])
    return [np.full(len(mask), value) for mask, value in zip(masks, expectation, strict=True)]


def with_nll_weights(sequences: Sequences) -> Sequences:
    """Return ``sequences`` with their 0/1 ``nll_weights`` divided by the number of ones."""
    flags = sequences.per_token["nll_weights"]
    trained = zip(flags, sequences.loss_mask, strict=True)
    count = max(1.0, sum(float(row[mask].sum()) for row, mask in trained))
    weights = [row / count for row in flags]
    return replace(sequences, per_token={**sequences.per_token, "nll_weights": weights})


def drawn_rows(num_rows: int, count: int, seed: int) -> np.ndarray:
    """Return ``count`` row numbers, each row once before any twice."""
    rng = np.random.default_rng(seed)
    laps = [rng.permutation(num_rows) for _ in range(-(-count // num_rows))]
    return np.concatenate(laps)[:count]


def mini_batch_rows(uids: np.ndarray, count: int, *, shuffle_seed: int | None) -> list[np.ndarray]:
    """Return up to ``count`` arrays of row numbers that never split a prompt's group.

    Prompts keep the order of their first row unless ``shuffle_seed`` permutes them. A batch of
    fewer prompts than ``count`` (dynamic sampling may train a partial one) has as many parts.
    """
    _, first, group = np.unique(uids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    if shuffle_seed is not None:
        order = np.random.default_rng(shuffle_seed).permutation(order)
    parts = np.array_split(order, min(count, len(order)))
    return [np.flatnonzero(np.isin(group, part)) for part in parts]


def policy_objective(recipe: Recipe) -> PolicyObjective:
    """Return the loss that the algorithm's axes describe."""
    rl, algorithm = recipe.rl, recipe.rl.algorithm
    kl, correction = algorithm.kl, algorithm.importance_correction
    return PolicyObjective(
        policy_loss=algorithm.policy_loss,
        clip_low=algorithm.clip_low,
        clip_high=algorithm.clip_high,
        clip_dual=algorithm.clip_dual,
        aggregation=algorithm.aggregation,
        horizon=rl.rollout.max_new_tokens * recipe.max_turns,
        temperature=rl.rollout.temperature,
        ratio_level=algorithm.ratio_level,
        kl_estimator=kl.estimator,
        kl_coef=kl.coef if kl.where == "loss" else 0.0,
        entropy_coef=algorithm.entropy_coef or (0.0 if rl.update.fused else None),
        nll_coef=algorithm.positive_nll.coef,
        importance_level=correction.level,
        importance_cap=correction.cap,
        importance_mode=correction.mode,
        importance_low=correction.low,
        reject=correction.reject,
        bypass=rl.update.bypass,
        on_policy=rl.update.steps == 1 and not rl.update.bypass,
        skip_zero_advantage=rl.update.skip_zero_advantage,
    )


def _steps(
    frame: pl.DataFrame, recipe: Recipe, sequences: Sequences, left_out: np.ndarray
) -> list[Step]:
    """Return the steps on ``sequences``, the rows of ``frame``: mini-batches by prompt, each epoch
    again, those with a token to train on. Rows ``left_out`` [rows] bool have an empty loss mask."""
    masks = [
        np.zeros_like(mask) if off else mask
        for mask, off in zip(sequences.loss_mask, left_out.tolist(), strict=True)
    ]
    sequences, update = replace(sequences, loss_mask=masks), recipe.rl.update
    lengths, uids = sequences.loss_lengths, frame["uid"].to_numpy()
    parts = []
    for epoch in range(update.epochs):
        seed = stream_seed(recipe.seed, "mini-batches", iteration_of(frame), epoch)
        shuffle_seed = seed if update.shuffle else None
        parts += mini_batch_rows(uids, update.mini_batches, shuffle_seed=shuffle_seed)
    return [
        (step, rows, sequences.take(rows)) for step, rows in enumerate(parts) if lengths[rows].any()
    ]


def step_rates(
    rl: RLSection, optimizer: Optimizer, *, done: int, updates: int, steps: Iterable[int]
) -> list[float]:
    """Return the learning rate of each of ``steps`` (of an update, from 0), after ``done`` of
    ``updates`` updates."""
    each = rl.update.steps
    return [optimizer_lr(optimizer, done * each + step, updates * each) for step in steps]
