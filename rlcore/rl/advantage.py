"""The advantage phase: from scores to what each token is credited with."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from rlcore.algorithms.advantages import AdvantageInput, AdvantageResult, estimate
from rlcore.algorithms.overlong import overlong_penalty
from rlcore.ragged import from_arrays
from rlcore.rewards.unscored import check_any_scored
from rlcore.rl.batch import RolloutBatch
from rlcore.rl.measures import (
    critic_metrics,
    estimate_metrics,
    length_metrics,
    reward_metrics,
    spread_metrics,
)
from rlcore.rl.scores import BatchScores, masked_mean
from rlcore.rl.turns import EpisodeCredit, TurnCredit
from schemas.algorithm import Algorithm
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError
from schemas.rl import RLSection


@dataclass(frozen=True, slots=True)
class Advantages:
    """What the advantage phase hands on: the recorded table, and what the KL controller reads.

    ``mean_kl``: over sequences of their mean KL to the reference, nats per token; None without one.
    """

    ref: ArtifactRef
    mean_kl: float | None
    num_sequences: int


def shaped_scores(
    batch: RolloutBatch, rl: RLSection, turns: TurnCredit | None = None, max_turns: int = 1
) -> tuple[np.ndarray, dict[str, float]]:
    """Return the task scores [rows] (NaN = unscorable) with the penalties of invalid turns and of
    overlong rows added; ``max_turns`` of an episode."""
    scores = batch.scores()
    if turns is not None:
        scores = scores - turns.penalties
    overlong = rl.algorithm.overlong
    if overlong is None:
        return scores, {}
    limit = overlong.max_tokens or rl.rollout.max_new_tokens * max_turns
    cache = limit // 5 if overlong.cache_tokens is None else overlong.cache_tokens
    penalty = overlong_penalty(
        batch.lengths(), max_tokens=limit, cache_tokens=cache, factor=overlong.factor
    )
    return scores + penalty, {
        "reward/overlong_penalty/mean": float(penalty.mean()),
        "reward/overlong_fraction": float((penalty < 0).mean()),
    }


def advantages_of(
    batch: RolloutBatch,
    scores: BatchScores,
    *,
    rl: RLSection,
    kl_coef: float | None,
    episodes: EpisodeCredit | None = None,
) -> tuple[pl.DataFrame, dict[str, float]]:
    """Return the Advantages table and the iteration's batch metrics (verl's names).

    ``kl_coef``: coefficient of the KL taken from the reward, None where none is. ``episodes``: how
    turns are credited, in an environment.
    """
    algorithm = rl.algorithm
    turns, max_turns = EpisodeCredit.of_rows(batch, episodes)
    shaped, metrics = shaped_scores(batch, rl, turns, max_turns)
    if turns is not None:
        metrics |= turns.metrics
    token_kl = None
    if kl_coef is not None and scores.kl is not None:
        token_kl = [kl_coef * row for row in scores.kl]
    given = AdvantageInput(
        scores=shaped,
        group_ids=batch.rollouts["uid"].to_numpy(),
        masks=scores.masks,
        token_kl=token_kl,
        values=scores.values,
        baselines=batch.baseline_scores(),
        turn_rewards=None if turns is None else turns.per_token,
    )
    result = estimate(algorithm.advantage, given, **estimator_options(algorithm))
    if scores.values is not None and result.returns is None:
        raise UserError(
            f"rl.critic is set and rl.algorithm.advantage = '{algorithm.advantage}' returns no"
            " returns for it to learn; return AdvantageResult(advantages, returns) or set rl.critic"
            " to null"
        )
    metrics |= estimate_metrics(result, scores.masks)
    metrics |= reward_metrics(batch.rewards_in_order)
    metrics |= length_metrics(batch.rollouts)
    metrics |= spread_metrics("critic/rewards", given.sequence_scores())
    if scores.entropies is not None:
        metrics["actor/entropy"] = masked_mean(scores.entropies, scores.masks)
    if scores.kl is not None:
        metrics["actor/ref_kl"] = masked_mean(scores.kl, scores.masks)
    if token_kl is not None and kl_coef is not None:
        metrics["actor/reward_kl_penalty"] = metrics["actor/ref_kl"]
        metrics["actor/reward_kl_penalty_coef"] = kl_coef
    if result.returns is not None and scores.values is not None:
        trained = [mask & ok for mask, ok in zip(scores.masks, given.scorable, strict=True)]
        metrics |= critic_metrics(scores.values, result.returns, trained)
    frame = _frame(batch, scores, result, positive=_positive(batch, algorithm))
    penalties = [None] * frame.height if turns is None else turns.penalties
    return frame.with_columns(pl.Series("penalty", penalties, pl.Float64)), metrics


def signal_of(
    batch: RolloutBatch,
    metric: str,
    *,
    rl: RLSection,
    kl_coef: float | None,
    scores: BatchScores | None,
    episodes: EpisodeCredit | None = None,
) -> np.ndarray:
    """Return what must differ within a group for it to be kept [rows], NaN = unscorable.

    accuracy: the verdict, 0 or 1; score: before shaping; final_score: after all penalties and KL,
    for which ``scores`` is read. Raises RewardFailureError when no row has a score.
    """
    rewards = batch.rewards_in_order
    if rewards["score"].is_null().all():
        check_any_scored(rewards.select("outcome", "detail").rows(), rows="rows of the round")
    if metric == "accuracy":
        correct = rewards["correct"]
        if correct.is_null().all():
            raise UserError(
                "rl.algorithm.dynamic_sampling.metric = 'accuracy' and no reward function judges"
                " correctness (returns acc); add one of weight 0 or set metric to 'score'"
            )
        return correct.cast(pl.Float64).fill_null(float("nan")).to_numpy()
    if metric == "score":
        return batch.scores()
    shaped, _ = shaped_scores(batch, rl, *EpisodeCredit.of_rows(batch, episodes))
    if kl_coef is None or scores is None or scores.kl is None:
        return shaped
    return shaped - kl_coef * np.array(
        [row[mask].sum() for row, mask in zip(scores.kl, scores.masks, strict=True)]
    )


def estimator_options(algorithm: Algorithm) -> dict[str, Any]:
    """Return the keyword arguments of the estimator that ``algorithm`` names."""
    if algorithm.is_custom:
        return algorithm.advantage_options
    gae = algorithm.gae
    return {
        "gae": gae.model_dump(),
        "grpo": {"norm_by_std": algorithm.norm_by_std},
        "reinforce++": {"gamma": gae.gamma},
    }.get(algorithm.advantage, {})


def _positive(batch: RolloutBatch, algorithm: Algorithm) -> pl.Series:
    """Which rows count as correct: by the positive-NLL threshold, else by the verdict.

    Raises UserError when that loss is on and no scored row has a verdict: it would always be 0.
    """
    positive, rewards = algorithm.positive_nll, batch.rewards_in_order
    if positive.threshold is not None:
        return rewards["score"] > positive.threshold
    unjudged = rewards["correct"].is_null().all() and rewards["score"].is_not_null().any()
    if positive.coef > 0 and unjudged:
        raise UserError(
            f"rl.algorithm.positive_nll.coef = {positive.coef:g} and no reward function judges"
            " correctness (returns acc); set positive_nll.threshold, or add one of weight 0"
        )
    return rewards["correct"]


def _frame(
    batch: RolloutBatch, scores: BatchScores, result: AdvantageResult, *, positive: pl.Series
) -> pl.DataFrame:
    """Return the Advantages table; what a row without a score would teach a critic is null."""
    unscored = np.isnan(batch.scores())

    def column(name: str, rows: list[np.ndarray] | None, *, drop: bool = False) -> pl.Series:
        if rows is None:
            return pl.Series(name, [None] * len(scores.masks), dtype=pl.List(pl.Float32))
        series = from_arrays(name, rows, pl.Float32)
        if drop and unscored.any():
            kept = pl.DataFrame({name: series, "unscored": unscored})
            when = pl.when(~pl.col("unscored")).then(pl.col(name)).alias(name)
            return kept.select(when)[name]
        return series

    return pl.DataFrame(
        {
            "trajectory_id": batch.rollouts["trajectory_id"],
            "advantages": column("advantages", result.advantages),
            "old_logprobs": column("old_logprobs", scores.old),
            "ref_logprobs": column("ref_logprobs", scores.ref),
            "values": column("values", scores.values),
            "returns": column("returns", result.returns, drop=True),
            "positive": positive,
        }
    )
