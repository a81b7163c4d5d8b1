"""Contracts of the tables of evolving: answers and verdicts of a round, and their scores."""

from typing import Any

import pandera.polars as pa
import polars as pl

from schemas.chats import MESSAGE
from schemas.contract import Table
from schemas.outcomes import FinishReason, Outcome

_OUTCOMES = [outcome.value for outcome in Outcome]
_UNSCORABLE = [Outcome.TIMEOUT.value, Outcome.ERROR.value, Outcome.ABORTED.value]
_FINISH_REASONS = [reason.value for reason in FinishReason]


class EvolveAnswers(Table):
    """What the policy said to one problem in one round of evolving, or as an independent sample."""

    uid: pl.String = pa.Field(unique=True)
    round: pl.Int32 = pa.Field(ge=1)
    prompt: pl.String
    memory: pl.List = pa.Field(dtype_kwargs={"inner": pl.Int32})
    response: pl.String
    turns: pl.List = pa.Field(dtype_kwargs={"inner": MESSAGE})
    turn_rewards: pl.List = pa.Field(dtype_kwargs={"inner": pl.Float64})
    answer: pl.String = pa.Field(nullable=True)
    attempts: pl.Int32 = pa.Field(ge=1)
    finish_reason: pl.String = pa.Field(isin=_FINISH_REASONS)
    num_tokens: pl.Int32 = pa.Field(ge=0)
    detail: pl.String


class EvolveVerdicts(Table):
    """One verifier's verdict on the answer of one round; 0 where it could not be read."""

    uid: pl.String
    round: pl.Int32 = pa.Field(ge=1)
    verifier: pl.Int32 = pa.Field(ge=0)
    verdict: pl.Int32 = pa.Field(isin=[0, 1])
    report: pl.String = pa.Field(nullable=True)
    attempts: pl.Int32 = pa.Field(ge=1)

    @pa.dataframe_check
    def a_verifier_judges_an_answer_once(cls, data: Any) -> pl.LazyFrame:
        return data.lazyframe.select(pl.struct("uid", "verifier").is_unique())

    @pa.dataframe_check
    def what_cannot_be_read_rejects(cls, data: Any) -> pl.LazyFrame:
        return data.lazyframe.select(pl.col("report").is_not_null() | (pl.col("verdict") == 0))


class EvolveScores(Table):
    """What an answer of evolving was worth, scored once all answers were there."""

    uid: pl.String
    data_source: pl.String
    subset: pl.String
    mode: pl.String = pa.Field(isin=["round", "independent"])
    round: pl.Int32 = pa.Field(ge=1)
    answer: pl.String = pa.Field(nullable=True)
    outcome: pl.String = pa.Field(isin=_OUTCOMES)
    score: pl.Float64 = pa.Field(nullable=True)
    correct: pl.Boolean = pa.Field(nullable=True)
    vote: pl.Int32 = pa.Field(isin=[0, 1], nullable=True)
    is_chosen: pl.Boolean

    @pa.dataframe_check
    def an_answer_stands_once(cls, data: Any) -> pl.LazyFrame:
        return data.lazyframe.select(pl.struct("uid", "mode", "round").is_unique())

    @pa.dataframe_check
    def unscorable_rows_have_no_score(cls, data: Any) -> pl.LazyFrame:
        unscorable = pl.col("outcome").is_in(_UNSCORABLE)
        return data.lazyframe.select(unscorable == pl.col("score").is_null())
