"""The advantage phase: from scores to what each token and each turn is credited with."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from rlcore.algorithms.advantages import AdvantageInput, AdvantageResult, estimate
from rlcore.algorithms.overlong import overlong_penalty
from rlcore.models.ragged import from_arrays, mean_of, to_arrays, to_floats
from rlcore.rewards.calls import failure_text
from rlcore.rewards.unscored_rows import check_any_scored
from rlcore.rl.batch import arrays_of, policy_tokens
from rlcore.rl.metrics import (
    critic_metrics,
    estimate_metrics,
    length_metrics,
    reward_metrics,
    spread_metrics,
)
from rlcore.rl.scores import masked_mean
from schemas.algorithm import Algorithm
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError
from schemas.names import ENVIRONMENT
from schemas.outcomes import StopReason
from schemas.recipe import Recipe


@dataclass(frozen=True, slots=True)
class TurnCredit:
    """``per_token``: per token of each row, what is given at the end of a turn. ``penalties``
    [rows]: what invalid turns take off the score. ``metrics``: of the episodes."""

    per_token: list[np.ndarray]
    penalties: np.ndarray
    metrics: dict[str, float]


def turn_credit(frame: pl.DataFrame, recipe: Recipe) -> TurnCredit | None:
    """Return the credit of each turn of ``frame``, at the turn's last policy token: the weight of
    the environment in the score x its reward, where that is a part of the row's score, less the
    penalty of a turn that it cannot read. None where an episode is one turn.

    The penalty is AlphaApollo's ``apply_invalid_action_penalty``: part of the score that group
    statistics see. Turns are not normalised by their number: where the policy decides when to stop,
    that is biased.
    """
    if recipe.environment is None:
        return None
    penalty = recipe.environment.invalid_action_penalty
    environment = sum(f.weight for f in recipe.reward.functions if f.name == ENVIRONMENT)
    ends, rewards = to_arrays(frame["turn_ends"]), to_arrays(frame["turn_rewards"])
    valid = [np.asarray(row, dtype=bool) for row in frame["valid_actions"].to_list()]
    lengths = frame["token_ids"].list.len().to_list()
    counted = [ENVIRONMENT in json.loads(parts or "{}") for parts in frame["parts"]]
    penalties, per_token = np.zeros(len(ends)), []
    for row, length in enumerate(lengths):
        invalid = penalty * ~valid[row]
        penalties[row] = invalid.sum()
        tokens = np.zeros(length)
        weight = environment if counted[row] else 0.0
        np.add.at(tokens, ends[row] - 1, weight * rewards[row] - invalid)
        per_token.append(tokens)
    metrics = {
        "episode/valid_action_ratio": float(np.concatenate(valid).mean()),
        "episode/done_ratio": mean_of(frame["stop_reason"] == StopReason.DONE.value),
        "episode/environment_reward/mean": float(np.mean([r.sum() for r in rewards])),
    }
    return TurnCredit(per_token, penalties, metrics)


ADVANTAGES = ("advantages", "old_logprobs", "ref_logprobs", "values", "returns")


@dataclass(frozen=True, slots=True)
class Advantages:
    """What the advantage phase hands on: the recorded table, and what the KL controller reads.

    ``mean_kl``: over sequences of their mean KL to the reference, nats per token; None without one.
    """

    ref: ArtifactRef
    mean_kl: float | None
    num_sequences: int


def shaped_scores(
    frame: pl.DataFrame, recipe: Recipe, turns: TurnCredit | None
) -> tuple[np.ndarray, dict[str, float]]:
    """Return the task scores [rows] (NaN = unscorable) with the penalties of invalid turns and of
    overlong rows added."""
    scores, rl = to_floats(frame["score"]), recipe.rl
    if turns is not None:
        scores = scores - turns.penalties
    overlong = rl.algorithm.overlong
    if overlong is None:
        return scores, {}
    limit = overlong.max_tokens or rl.rollout.max_new_tokens * recipe.max_turns
    cache = limit // 5 if overlong.cache_tokens is None else overlong.cache_tokens
    penalty = overlong_penalty(
        policy_tokens(frame), max_tokens=limit, cache_tokens=cache, factor=overlong.factor
    )
    return scores + penalty, {
        "reward/overlong_penalty/mean": float(penalty.mean()),
        "reward/overlong_fraction": float((penalty < 0).mean()),
    }


def given(
    frame: pl.DataFrame, recipe: Recipe, kl_coef: float | None
) -> tuple[AdvantageInput, TurnCredit | None, dict[str, float]]:
    """Return what the estimator is given of ``frame``, the credit of turns in it, and the metrics
    of shaping. ``kl_coef``: coefficient of the KL taken from the reward, None where none is."""
    turns = turn_credit(frame, recipe)
    shaped, metrics = shaped_scores(frame, recipe, turns)
    kl = arrays_of(frame, "kl")
    batch = AdvantageInput(
        scores=shaped,
        group_ids=frame["uid"].to_numpy(),
        masks=to_arrays(frame["loss_mask"]),
        token_kl=None if kl_coef is None or kl is None else [kl_coef * row for row in kl],
        values=arrays_of(frame, "values"),
        baselines=to_floats(frame["baseline"]) if "baseline" in frame.columns else None,
        turn_rewards=None if turns is None else turns.per_token,
    )
    return batch, turns, metrics | ({} if turns is None else turns.metrics)


def with_advantages(
    frame: pl.DataFrame, recipe: Recipe, kl_coef: float | None
) -> tuple[pl.DataFrame, dict[str, float]]:
    """Return ``frame``, which has the learners' scores (``scores``), with the columns of the table
    Advantages, and the iteration's batch metrics (verl's names).

    Where a row has no score, what it would teach a critic is null. ``kl_coef``: as in ``given``.
    """
    algorithm = recipe.rl.algorithm
    batch, turns, metrics = given(frame, recipe, kl_coef)
    masks, values = batch.masks, batch.values
    result = _estimated(algorithm, batch)
    if values is not None and result.returns is None:
        raise UserError(
            f"rl.critic is set and rl.algorithm.advantage = '{algorithm.advantage}' returns no"
            " returns for it to learn; return AdvantageResult(advantages, returns) or set rl.critic"
            " to null"
        )
    metrics |= estimate_metrics(result, masks)
    metrics |= reward_metrics(frame)
    metrics |= length_metrics(frame)
    metrics |= spread_metrics("critic/rewards", batch.sequence_scores())
    for name, column in (("actor/entropy", "entropies"), ("actor/ref_kl", "kl")):
        if (measured := arrays_of(frame, column)) is not None:
            metrics[name] = masked_mean(measured, masks)
    if batch.token_kl is not None and kl_coef is not None:
        metrics["actor/reward_kl_penalty"] = metrics["actor/ref_kl"]
        metrics["actor/reward_kl_penalty_coef"] = kl_coef
    credited = advantage_columns(
        frame,
        advantages=result.advantages,
        returns=result.returns,
        positive=_positive(frame, algorithm),
        penalty=None if turns is None else turns.penalties,
    )
    if result.returns is not None and values is not None:
        trained = [mask & ok for mask, ok in zip(masks, batch.scorable, strict=True)]
        metrics |= critic_metrics(values, result.returns, trained)
    scored = pl.col("score").fill_nan(None).is_not_null()
    return credited.with_columns(pl.when(scored).then("returns").alias("returns")), metrics


def _estimated(algorithm: Algorithm, batch: AdvantageInput) -> AdvantageResult:
    """Return the advantages of ``batch``. Raises UserError as ``estimate``, and where a function of
    the user's raises."""
    try:
        return estimate(algorithm.advantage, batch, **estimator_options(algorithm))
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        if not algorithm.is_custom:
            raise
        raise UserError(
            f"rl.algorithm.advantage = '{algorithm.advantage}' failed:"
            f" {failure_text(error)}; correct the function"
        ) from error


def advantage_columns(
    frame: pl.DataFrame,
    *,
    advantages: list[np.ndarray],
    returns: list[np.ndarray] | None,
    positive: pl.Series,
    penalty: np.ndarray | None = None,
) -> pl.DataFrame:
    """Return ``frame`` with every column of the table Advantages, null where it is not known."""
    unknown = dict.fromkeys(name for name in ADVANTAGES if name not in frame.columns)
    columns = {**unknown, "advantages": advantages, "returns": returns}
    return frame.with_columns(
        *(
            pl.Series(name, [None] * frame.height, pl.List(pl.Float32))
            if rows is None
            else from_arrays(name, rows, pl.Float32)
            for name, rows in columns.items()
        ),
        positive.alias("positive"),
        pl.Series("penalty", [None] * frame.height if penalty is None else penalty, pl.Float64),
    )


def signal_of(
    frame: pl.DataFrame, metric: str, recipe: Recipe, kl_coef: float | None
) -> np.ndarray:
    """Return what must differ within a group for it to be kept [rows], NaN = unscorable.

    accuracy: the verdict, 0 or 1, of a group without one its score; score: before shaping;
    final_score: after all penalties and KL, where ``frame`` has it. Raises RewardFailureError when
    no row has a score.
    """
    if frame["score"].is_null().all():
        check_any_scored(frame.select("outcome", "detail").rows(), rows="rows of the round")
    if metric == "accuracy":
        correct = frame["correct"]
        if correct.is_null().all():
            raise UserError(
                "rl.algorithm.dynamic_sampling.metric = 'accuracy' and no reward function judges"
                " correctness (returns acc); add one of weight 0 or set metric to 'score'"
            )
        # A source that only a model or judge scores has no verdicts, and would be dropped whole.
        judged = pl.col("correct").is_not_null().any().over("uid")
        signal = pl.when(judged).then(pl.col("correct").cast(pl.Float64)).otherwise("score")
        return to_floats(frame.select(signal).to_series())
    if metric == "score":
        return to_floats(frame["score"])
    batch, _, _ = given(frame, recipe, kl_coef)
    return batch.sequence_scores()


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


def _positive(frame: pl.DataFrame, algorithm: Algorithm) -> pl.Series:
    """Which rows count as correct: by the positive-NLL threshold, else by the verdict.

    Raises UserError when that loss is on and no scored row has a verdict: it would always be 0.
    """
    positive = algorithm.positive_nll
    if positive.threshold is not None:
        return frame["score"] > positive.threshold
    unjudged = frame["correct"].is_null().all() and frame["score"].is_not_null().any()
    if positive.coef > 0 and unjudged:
        raise UserError(
            f"rl.algorithm.positive_nll.coef = {positive.coef:g} and no reward function judges"
            " correctness (returns acc); set positive_nll.threshold, or add one of weight 0"
        )
    return frame["correct"]
