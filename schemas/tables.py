"""Pandera contracts of every Parquet table that passes between stages (polars, eager).

``TABLES`` maps a table's name (its file is ``<name>.parquet``) to its model. Rows are keyed by
``uid`` (prompt) and ``trajectory_id`` (one sampled response). The versions of their schemas:
``schemas/versions.py``; what each column holds: ``schemas/columns.py``.
"""

from typing import Any

import pandera.polars as pa
import polars as pl

from schemas.chats import MESSAGE
from schemas.contract import Table
from schemas.evolve_tables import EvolveAnswers, EvolveScores, EvolveVerdicts
from schemas.outcomes import LEVELS, FinishReason, Outcome, StopReason
from schemas.records import (
    Champions,
    Decisions,
    Inputs,
    Iterations,
    Restarts,
    RunStages,
    Weights,
)

SPLITS = ["train", "validation", "test"]
OUTCOMES = [outcome.value for outcome in Outcome]
UNSCORABLE = [Outcome.TIMEOUT.value, Outcome.ERROR.value, Outcome.ABORTED.value]
FINISH_REASONS = [reason.value for reason in FinishReason]
STOP_REASONS = [reason.value for reason in StopReason]


def _equal_lengths(frame: pl.LazyFrame, columns: list[str]) -> pl.LazyFrame:
    first = pl.col(columns[0]).list.len()
    return frame.select(pl.all_horizontal([pl.col(c).list.len() == first for c in columns[1:]]))


class Prompts(Table):
    """One prompt to learn or be evaluated on (verl's columns plus uid, split and token ids).

    Produced by prepare_data; consumed by rollout and evaluate.
    """

    uid: pl.String = pa.Field(unique=True)
    split: pl.String = pa.Field(isin=SPLITS)
    subset: pl.String
    data_source: pl.String
    prompt: pl.List = pa.Field(dtype_kwargs={"inner": MESSAGE})
    prompt_ids: pl.List = pa.Field(dtype_kwargs={"inner": pl.Int32})
    ability: pl.String
    reward_style: pl.String = pa.Field(isin=["rule", "model", "judge", "code"])
    ground_truth: pl.String = pa.Field(nullable=True)
    extra_info: pl.String

    @pa.dataframe_check
    def prompts_are_not_empty(cls, data: Any) -> pl.LazyFrame:
        return data.lazyframe.select(
            (pl.col("prompt").list.len() > 0) & (pl.col("prompt_ids").list.len() > 0)
        )

    @pa.dataframe_check
    def rule_rows_have_ground_truth(cls, data: Any) -> pl.LazyFrame:
        return data.lazyframe.select(
            (pl.col("reward_style") != "rule") | pl.col("ground_truth").is_not_null()
        )


class Demonstrations(Table):
    """One SFT example: messages, their token ids, and the mask of assistant tokens that carry
    loss."""

    uid: pl.String = pa.Field(unique=True)
    split: pl.String = pa.Field(isin=["train", "validation"])
    data_source: pl.String
    messages: pl.List = pa.Field(dtype_kwargs={"inner": MESSAGE})
    token_ids: pl.List = pa.Field(dtype_kwargs={"inner": pl.Int32})
    loss_mask: pl.List = pa.Field(dtype_kwargs={"inner": pl.Boolean})

    @pa.dataframe_check
    def mask_covers_tokens(cls, data: Any) -> pl.LazyFrame:
        return _equal_lengths(data.lazyframe, ["token_ids", "loss_mask"])

    @pa.dataframe_check
    def some_token_carries_loss(cls, data: Any) -> pl.LazyFrame:
        return data.lazyframe.select(pl.col("loss_mask").list.any())


class Rejects(Table):
    """One input row that preparation dropped, and why."""

    source: pl.String
    row: pl.Int64 = pa.Field(ge=0)
    reason: pl.String
    detail: pl.String
    content: pl.String


class Rollouts(Table):
    """One trajectory as sampled, before anything is learnt from it. Token in, token out."""

    trajectory_id: pl.String = pa.Field(unique=True)
    uid: pl.String
    sample: pl.Int32 = pa.Field(ge=0)
    iteration: pl.Int32 = pa.Field(ge=0)
    token_ids: pl.List = pa.Field(dtype_kwargs={"inner": pl.Int32})
    prompt_tokens: pl.Int32 = pa.Field(ge=1)
    loss_mask: pl.List = pa.Field(dtype_kwargs={"inner": pl.Boolean})
    sampler_logprobs: pl.List = pa.Field(dtype_kwargs={"inner": pl.Float32})
    response: pl.String
    finish_reason: pl.String = pa.Field(isin=FINISH_REASONS)
    stop_reason: pl.String = pa.Field(isin=STOP_REASONS)
    turn_ends: pl.List = pa.Field(dtype_kwargs={"inner": pl.Int32})
    turn_rewards: pl.List = pa.Field(dtype_kwargs={"inner": pl.Float64})
    turn_versions: pl.List = pa.Field(dtype_kwargs={"inner": pl.Int64})
    valid_actions: pl.List = pa.Field(dtype_kwargs={"inner": pl.Boolean})
    seed: pl.Int64
    weight_version: pl.Int64 = pa.Field(ge=0)
    weight_digest: pl.String

    @pa.dataframe_check
    def tokens_masks_and_logprobs_align(cls, data: Any) -> pl.LazyFrame:
        return _equal_lengths(data.lazyframe, ["token_ids", "loss_mask", "sampler_logprobs"])

    @pa.dataframe_check
    def the_prompt_is_masked(cls, data: Any) -> pl.LazyFrame:
        prompt = pl.col("loss_mask").list.head(pl.col("prompt_tokens"))
        return data.lazyframe.select(~prompt.list.any())

    @pa.dataframe_check
    def turns_align(cls, data: Any) -> pl.LazyFrame:
        per_turn = ["turn_ends", "turn_rewards", "turn_versions", "valid_actions"]
        return _equal_lengths(data.lazyframe, per_turn)

    @pa.dataframe_check
    def turns_end_within_the_episode(cls, data: Any) -> pl.LazyFrame:
        ends = pl.col("turn_ends")
        return data.lazyframe.select(
            (ends.list.first() >= pl.col("prompt_tokens"))
            & ends.list.eval(pl.element().diff().fill_null(0) >= 0).list.all()
            & (ends.list.last() <= pl.col("token_ids").list.len())
        )

    @pa.dataframe_check
    def logprobs_are_finite_and_not_positive(cls, data: Any) -> pl.LazyFrame:
        valid = (pl.element() <= 0) & pl.element().is_finite()
        return data.lazyframe.select(pl.col("sampler_logprobs").list.eval(valid).list.all())


class Episodes(Table):
    """What was said in each episode of an environment, and why one could not go on."""

    trajectory_id: pl.String = pa.Field(unique=True)
    turns: pl.List = pa.Field(dtype_kwargs={"inner": MESSAGE})
    failure: pl.String = pa.Field(nullable=True)


class Rewards(Table):
    """How each trajectory was scored. ``score`` is null when it could not be: never a silent 0."""

    trajectory_id: pl.String = pa.Field(unique=True)
    outcome: pl.String = pa.Field(isin=OUTCOMES)
    score: pl.Float64 = pa.Field(nullable=True)
    correct: pl.Boolean = pa.Field(nullable=True)
    counts: pl.Boolean
    parts: pl.String
    detail: pl.String
    failures: pl.String
    seconds: pl.Float64 = pa.Field(ge=0)
    verdicts: pl.String = pa.Field(nullable=True)

    @pa.dataframe_check
    def unscorable_rows_have_no_score(cls, data: Any) -> pl.LazyFrame:
        unscorable = pl.col("outcome").is_in(UNSCORABLE)
        return data.lazyframe.select(unscorable == pl.col("score").is_null())


class Advantages(Table):
    """What the update learns from, per token of ``Rollouts.token_ids``."""

    trajectory_id: pl.String = pa.Field(unique=True)
    advantages: pl.List = pa.Field(dtype_kwargs={"inner": pl.Float32})
    old_logprobs: pl.List = pa.Field(nullable=True, dtype_kwargs={"inner": pl.Float32})
    ref_logprobs: pl.List = pa.Field(nullable=True, dtype_kwargs={"inner": pl.Float32})
    values: pl.List = pa.Field(nullable=True, dtype_kwargs={"inner": pl.Float32})
    returns: pl.List = pa.Field(nullable=True, dtype_kwargs={"inner": pl.Float32})
    positive: pl.Boolean = pa.Field(nullable=True)
    penalty: pl.Float64 = pa.Field(nullable=True, ge=0)

    @pa.dataframe_check
    def columns_align(cls, data: Any) -> pl.LazyFrame:
        return _equal_lengths(data.lazyframe, ["advantages", "old_logprobs"])

    @pa.dataframe_check
    def numbers_are_finite(cls, data: Any) -> pl.LazyFrame:
        finite = pl.element().is_finite()
        return data.lazyframe.select(
            pl.all_horizontal(
                pl.col(name).list.eval(finite).list.all().fill_null(value=True)
                for name in ("advantages", "values", "returns")
            )
        )


class OwnLogprobs(Table):
    """The policy's log-probs as its update scored them, where ``rl.update.old_logprobs`` is own or
    fused.

    One row per trajectory that trained, and epoch; fused, also of the sample that did not train.
    """

    trajectory_id: pl.String
    epoch: pl.Int32 = pa.Field(ge=0)
    own_logprobs: pl.List = pa.Field(dtype_kwargs={"inner": pl.Float32})

    @pa.dataframe_check
    def a_trajectory_stands_once_in_an_epoch(cls, data: Any) -> pl.LazyFrame:
        return data.lazyframe.select(pl.struct("trajectory_id", "epoch").is_unique())

    @pa.dataframe_check
    def logprobs_are_finite(cls, data: Any) -> pl.LazyFrame:
        finite = pl.element().is_finite()
        return data.lazyframe.select(pl.col("own_logprobs").list.eval(finite).list.all())


class Metrics(Table):
    """One number of one step. The truth of every curve; wandb is a view of it."""

    stage: pl.String
    step: pl.Int64 = pa.Field(ge=0)
    name: pl.String
    value: pl.Float64 = pa.Field(nullable=True)


class EvalResults(Table):
    """One figure of one checkpoint on one data source, with its 95 % confidence interval."""

    checkpoint: pl.String
    data_source: pl.String
    subset: pl.String
    metric: pl.String
    value: pl.Float64
    ci_low: pl.Float64
    ci_high: pl.Float64
    num_prompts: pl.Int64 = pa.Field(ge=1)
    num_samples: pl.Int64 = pa.Field(ge=1)


class Completions(Table):
    """One completion that evaluation drew, with its verdict."""

    checkpoint: pl.String
    uid: pl.String
    data_source: pl.String
    subset: pl.String
    mode: pl.String = pa.Field(isin=["greedy", "sampled"])
    sample: pl.Int32 = pa.Field(ge=0)
    prompt: pl.String
    response: pl.String
    ground_truth: pl.String = pa.Field(nullable=True)
    outcome: pl.String = pa.Field(isin=OUTCOMES)
    score: pl.Float64 = pa.Field(nullable=True)
    answer: pl.String = pa.Field(nullable=True)
    finish_reason: pl.String = pa.Field(isin=FINISH_REASONS)
    num_tokens: pl.Int32 = pa.Field(ge=0)
    verdicts: pl.String = pa.Field(nullable=True)
    turns: pl.List = pa.Field(dtype_kwargs={"inner": MESSAGE})
    valid_actions: pl.List = pa.Field(dtype_kwargs={"inner": pl.Boolean})


class ValidationAnswers(Table):
    """One greedy answer of a validation during RL."""

    trajectory_id: pl.String = pa.Field(unique=True)
    response: pl.String
    finish_reason: pl.String = pa.Field(isin=FINISH_REASONS)
    num_tokens: pl.Int32 = pa.Field(ge=0)


class Preferences(Table):
    """One response to a prompt with its rank among that prompt's."""

    uid: pl.String
    split: pl.String = pa.Field(isin=["train", "validation"])
    data_source: pl.String
    sample: pl.Int32 = pa.Field(ge=0)
    token_ids: pl.List = pa.Field(dtype_kwargs={"inner": pl.Int32})
    prompt_tokens: pl.Int32 = pa.Field(ge=1)
    response: pl.String
    rank: pl.Int32 = pa.Field(ge=1)
    level: pl.String = pa.Field(isin=LEVELS, nullable=True)
    verdicts: pl.String = pa.Field(nullable=True)

    @pa.dataframe_check
    def a_response_stands_once(cls, data: Any) -> pl.LazyFrame:
        return data.lazyframe.select(pl.struct("uid", "sample").is_unique())

    @pa.dataframe_check
    def responses_are_not_empty(cls, data: Any) -> pl.LazyFrame:
        return data.lazyframe.select(pl.col("token_ids").list.len() > pl.col("prompt_tokens"))

    @pa.dataframe_check
    def a_prompt_has_one_split(cls, data: Any) -> pl.LazyFrame:
        return data.lazyframe.select(pl.col("split").n_unique().over("uid") == 1)


class PreferenceScores(Table):
    """What the reward model gives each held-out response of ``Preferences``."""

    uid: pl.String
    sample: pl.Int32 = pa.Field(ge=0)
    score: pl.Float64

    @pa.dataframe_check
    def scores_are_finite(cls, data: Any) -> pl.LazyFrame:
        return data.lazyframe.select(pl.col("score").is_finite())


class PairAccuracy(Table):
    """Share of held-out pairs that the reward model orders as their ranks do, by difficulty.

    The interval resamples prompts, since the pairs of a prompt share responses.
    """

    level: pl.String = pa.Field(unique=True)
    num_prompts: pl.Int64 = pa.Field(ge=1)
    num_pairs: pl.Int64 = pa.Field(ge=1)
    accuracy: pl.Float64 = pa.Field(ge=0, le=1)
    ci_low: pl.Float64 = pa.Field(ge=0, le=1)
    ci_high: pl.Float64 = pa.Field(ge=0, le=1)


class Calibration(Table):
    """Of held-out pairs for which the reward model claims sigmoid(|score difference|) in
    [low, high): its mean claim, and the share it orders rightly. Bins without pairs are left out.
    """

    low: pl.Float64 = pa.Field(ge=0.5, lt=1, unique=True)
    high: pl.Float64 = pa.Field(gt=0.5, le=1)
    num_pairs: pl.Int64 = pa.Field(ge=1)
    claimed: pl.Float64 = pa.Field(ge=0.5, le=1)
    observed: pl.Float64 = pa.Field(ge=0, le=1)


class Diagnostics(Table):
    """One period in which a check failed in an RL run; ``ended`` is null while it lasts."""

    check: pl.String
    severity: pl.String = pa.Field(isin=["warning", "fatal"])
    began: pl.Int64 = pa.Field(ge=0)
    ended: pl.Int64 = pa.Field(ge=1, nullable=True)
    value: pl.Float64 = pa.Field(nullable=True)
    message: pl.String
    remedy: pl.String


TABLES: dict[str, type[Table]] = {
    "prompts": Prompts,
    "demonstrations": Demonstrations,
    "rejects": Rejects,
    "rollouts": Rollouts,
    "rewards": Rewards,
    "baselines": Rollouts,
    "baseline_rewards": Rewards,
    "validation_rewards": Rewards,
    "validation_answers": ValidationAnswers,
    "advantages": Advantages,
    "episodes": Episodes,
    "own_logprobs": OwnLogprobs,
    "metrics": Metrics,
    "eval_results": EvalResults,
    "completions": Completions,
    "evolve_answers": EvolveAnswers,
    "evolve_verdicts": EvolveVerdicts,
    "evolve_scores": EvolveScores,
    "preferences": Preferences,
    "preference_scores": PreferenceScores,
    "pair_accuracy": PairAccuracy,
    "calibration": Calibration,
    "diagnostics": Diagnostics,
    "run_stages": RunStages,
    "restarts": Restarts,
    "iterations": Iterations,
    "weights": Weights,
    "inputs": Inputs,
    "champions": Champions,
    "decisions": Decisions,
}
