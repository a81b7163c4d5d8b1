"""Metrics of one batch, under verl's names, from its tables."""

from collections.abc import Collection, Sequence

import numpy as np
import polars as pl

from rlcore.algorithms.advantages import AdvantageResult
from rlcore.algorithms.value_loss import explained_variance
from rlcore.ragged import mean_of, to_floats
from rlcore.rewards.parts import part_metrics
from rlcore.rewards.unscored import ERRORS, TIMEOUTS
from schemas.outcomes import FinishReason, Outcome

VERIFIER_CORRELATION = "reward/verifier_rank_correlation"
LEAST_VERDICTS = 10  # of each kind: with fewer the correlation of one batch is mostly noise


def spread_metrics(name: str, values: np.ndarray) -> dict[str, float]:
    """Return mean, max and min of ``values`` [any] without NaN; nothing when none is left."""
    known = values[~np.isnan(values)]
    if not len(known):
        return {}
    return {
        f"{name}/mean": float(known.mean()),
        f"{name}/max": float(known.max()),
        f"{name}/min": float(known.min()),
    }


def reward_metrics(rewards: pl.DataFrame) -> dict[str, float]:
    """Return ``critic/score/*`` over scored rows, accuracy over verdicts, how well the scores rank
    right responses above wrong ones, and failures."""
    metrics = {
        **failure_metrics(rewards, "reward"),
        "reward/no_answer_fraction": mean_of(rewards["outcome"] == Outcome.NO_ANSWER.value),
    }
    scores, verdicts = to_floats(rewards["score"]), to_floats(rewards["correct"])
    has_score, has_verdict = ~np.isnan(scores), ~np.isnan(verdicts)
    if has_verdict.any():
        metrics["critic/accuracy"] = float(verdicts[has_verdict].mean())
    metrics |= spread_metrics("critic/score", scores) | part_metrics(rewards)
    judged = has_score & has_verdict
    agreement = verdict_correlation(scores[judged], verdicts[judged] == 1)
    return metrics if agreement is None else {**metrics, VERIFIER_CORRELATION: agreement}


def verdict_correlation(scores: np.ndarray, correct: np.ndarray) -> float | None:
    """Return the rank-biserial correlation of ``scores`` [rows] with ``correct`` [rows] (bool): the
    share of pairs of a right and a wrong response in which the right one scores higher, minus the
    share in which it scores lower (Cureton, Psychometrika 21, 1956).

    Unlike Spearman's correlation it does not fall merely because more responses are right. None
    where scores are all equal, or fewer than ``LEAST_VERDICTS`` responses are right, or wrong.
    """
    right, wrong = np.sort(scores[correct]), np.sort(scores[~correct])
    if min(len(right), len(wrong)) < LEAST_VERDICTS or scores.min() == scores.max():
        return None
    above = np.searchsorted(right, wrong, side="right")  # right responses up to each wrong one
    below = np.searchsorted(right, wrong, side="left")
    pairs = len(right) * len(wrong)
    return float(((len(right) - above).sum() - below.sum()) / pairs)


def failure_metrics(rewards: pl.DataFrame, prefix: str) -> dict[str, float]:
    """Return the shares of rows of the Rewards table without a score, and without a verdict.

    ``error_fraction``: reward code, judge or engine failed; ``timeout_fraction``: the clock ended
    it; ``judge_failed_fraction``: a function of weight 0 failed, the row kept its score.
    """
    outcomes = rewards["outcome"].to_list()

    def share(of: Collection[str]) -> float:
        return sum(outcome in of for outcome in outcomes) / max(len(outcomes), 1)

    return {
        f"{prefix}/error_fraction": share(ERRORS),
        f"{prefix}/timeout_fraction": share(TIMEOUTS),
        f"{prefix}/judge_failed_fraction": mean_of(rewards["failures"] != "{}"),
    }


def estimate_metrics(result: AdvantageResult, masks: Sequence[np.ndarray]) -> dict[str, float]:
    """Return ``critic/advantages/*`` over policy tokens, and what the groups looked like."""
    return {
        **spread_metrics("critic/advantages", _flat(result.advantages, masks)),
        "critic/zero_std_group_fraction": result.constant_fraction,
        "critic/singleton_groups": float(result.num_singletons),
    }


def critic_metrics(
    values: Sequence[np.ndarray], returns: list[np.ndarray], masks: list[np.ndarray]
) -> dict[str, float]:
    """Return values, returns and explained variance over the tokens the critic learns from."""
    flat_values, flat_returns = _flat(values, masks), _flat(returns, masks)
    return {
        **spread_metrics("critic/values", flat_values),
        **spread_metrics("critic/returns", flat_returns),
        "critic/vf_explained_var": explained_variance(flat_values, flat_returns),
    }


def length_metrics(rollouts: pl.DataFrame) -> dict[str, float]:
    """Return token counts of prompts and responses, truncation and aborts (verl's names), and
    how many responses ended before they said anything: ``response/empty_ratio``."""
    responses = rollouts["loss_mask"].list.sum().cast(pl.Int64).to_numpy()
    prompts = rollouts["prompt_tokens"].cast(pl.Int64).to_numpy()
    turns = rollouts["turn_ends"].list.len().to_numpy()
    reasons = rollouts["finish_reason"]
    stopped = reasons == FinishReason.STOP.value
    return {
        "response_length/mean": float(responses.mean()),
        "response_length/max": float(responses.max()),
        "response_length/min": float(responses.min()),
        "response_length/clip_ratio": mean_of(reasons == FinishReason.LENGTH.value),
        "response/aborted_ratio": mean_of(reasons == FinishReason.ABORT.value),
        "response/empty_ratio": mean_of(stopped & (rollouts["response"].str.strip_chars() == "")),
        "prompt_length/mean": float(prompts.mean()),
        "prompt_length/max": float(prompts.max()),
        "num_turns/mean": float(turns.mean()),
        "perf/total_num_tokens": float(prompts.sum() + responses.sum()),
        "perf/response_tokens": float(responses.sum()),
    }


def _flat(arrays: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays)[np.concatenate(masks)]
