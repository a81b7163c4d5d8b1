"""The advantage phase: log-probs under learner and reference, then one advantage per trajectory."""

import numpy as np
import polars as pl

from rlcore.algorithms.advantages import estimator
from rlcore.learner.group import LearnerGroup
from rlcore.ragged import from_arrays, to_arrays
from rlcore.rewards.parts import part_metrics
from rlcore.rl.batch import response_part, sequences_of
from rlcore.rl.guards import check_sampler_gap
from schemas.rl import RLSection


def advantages_of(
    rollouts: pl.DataFrame,
    rewards: pl.DataFrame,
    *,
    learner: LearnerGroup,
    reference: LearnerGroup | None,
    rl: RLSection,
) -> tuple[pl.DataFrame, dict[str, float]]:
    """Return the Advantages table and the iteration's batch metrics (verl's names).

    Old log-probs are the learner's own, recomputed (SPEC E3 "decoupled"), at the rollout
    temperature. Raises SamplerDriftError when they differ from the sampler's by more than
    ``rl.max_logprob_gap``.
    """
    sequences = sequences_of(rollouts)
    temperature = rl.rollout.temperature
    scores = learner.logprobs(sequences, temperature, targets="loss_mask", entropy=True)
    old = response_part(rollouts, scores.logprobs)
    entropies = response_part(rollouts, scores.entropies)
    masks = to_arrays(rollouts["loss_mask"])
    metrics = check_sampler_gap(
        to_arrays(rollouts["sampler_logprobs"]), old, masks, bound=rl.max_logprob_gap
    )
    reference_column = pl.Series("ref_logprobs", [None] * len(old), dtype=pl.List(pl.Float32))
    if reference is not None:
        whole = reference.logprobs(sequences, temperature, targets="loss_mask").logprobs
        frozen = response_part(rollouts, whole)
        reference_column = from_arrays("ref_logprobs", frozen, pl.Float32)
        metrics["actor/ref_kl"] = _masked_mean(
            [o - f for o, f in zip(old, frozen, strict=True)], masks
        )

    scored = rollouts.select("trajectory_id", "uid").join(
        rewards, on="trajectory_id", how="left", maintain_order="left", validate="1:1"
    )
    score = scored["score"].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    algorithm = rl.algorithm
    groups = estimator(algorithm.advantage)(
        score, scored["uid"].to_numpy(), norm_by_std=algorithm.norm_by_std
    )
    per_token = [
        np.where(mask, value, 0.0) for value, mask in zip(groups.values, masks, strict=True)
    ]
    frame = pl.DataFrame(
        {
            "trajectory_id": rollouts["trajectory_id"],
            "advantages": from_arrays("advantages", per_token, pl.Float32),
            "old_logprobs": from_arrays("old_logprobs", old, pl.Float32),
            "ref_logprobs": reference_column,
        }
    )
    metrics |= {
        "actor/entropy": _masked_mean(entropies, masks),
        "critic/advantages/mean": float(np.mean(groups.values)),
        "critic/advantages/max": float(np.max(groups.values)),
        "critic/advantages/min": float(np.min(groups.values)),
        "critic/zero_std_group_fraction": groups.constant_fraction,
        "critic/singleton_groups": float(groups.num_singletons),
    }
    return frame, metrics | reward_metrics(scored) | length_metrics(rollouts)


def reward_metrics(scored: pl.DataFrame) -> dict[str, float]:
    """Return ``critic/score/*`` over scored rows and the share of each outcome that is no score."""
    score = scored["score"].drop_nulls().to_numpy()
    failed = scored["outcome"].is_in(["timeout", "error"]).sum() / max(1, scored.height)
    metrics = {
        "reward/error_fraction": float(failed),
        "reward/no_answer_fraction": _share(scored["outcome"] == "no_answer"),
    }
    judged = scored["correct"].drop_nulls()
    if judged.len():
        metrics["critic/accuracy"] = _share(judged)
    if len(score):
        metrics |= {
            "critic/score/mean": float(score.mean()),
            "critic/score/max": float(score.max()),
            "critic/score/min": float(score.min()),
            # No KL is taken from the reward here, so rewards equal scores.
            "critic/rewards/mean": float(score.mean()),
            "critic/rewards/max": float(score.max()),
            "critic/rewards/min": float(score.min()),
        }
    return metrics | part_metrics(scored)


def length_metrics(rollouts: pl.DataFrame) -> dict[str, float]:
    """Return token counts of prompts and responses, truncation and aborts (verl's names)."""
    responses = rollouts["loss_mask"].list.sum().to_numpy()
    prompts = rollouts["prompt_ids"].list.len().to_numpy()
    reasons = rollouts["finish_reason"]
    return {
        "response_length/mean": float(responses.mean()),
        "response_length/max": float(responses.max()),
        "response_length/min": float(responses.min()),
        "response_length/clip_ratio": _share(reasons == "length"),
        "response/aborted_ratio": _share(reasons == "abort"),
        "prompt_length/mean": float(prompts.mean()),
        "prompt_length/max": float(prompts.max()),
        "num_turns/mean": float(rollouts["num_turns"].to_numpy().mean()),
        "perf/total_num_tokens": float(prompts.sum() + responses.sum()),
        "perf/response_tokens": float(responses.sum()),
    }


def _share(flags: pl.Series) -> float:
    return float(flags.to_numpy().mean())


def _masked_mean(arrays: list[np.ndarray], masks: list[np.ndarray]) -> float:
    mask = np.concatenate(masks).astype(bool)
    return float(np.concatenate(arrays)[mask].mean()) if mask.any() else 0.0
