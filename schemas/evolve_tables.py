"""Contracts of the tables of evolving: answers and verdicts of a round, and their scores."""

import polars as pl

from schemas.contract import (
    FINISH_REASONS,
    NO_SCORE,
    OUTCOMES,
    boolean,
    float64,
    float64s,
    int32,
    int32s,
    messages,
    once,
    rows,
    string,
    table,
)

EVOLVE_ANSWERS = table(
    uid=string("the problem: prompts.uid", unique=True),
    round=int32("number of the round, or of the independent sample, from 1", ge=1),
    prompt=string("what the policy was shown, as text"),
    memory=int32s("rounds whose solutions it was shown, the best first"),
    response=string("its last turn, as text"),
    turns=messages("what followed the prompt, in an environment; empty without one"),
    turn_rewards=float64s("the environment's reward of each turn"),
    answer=string("the answer in response; null where no attempt had one", nullable=True),
    attempts=int32("times that it was asked: 1 + evolve.format_retries at most", ge=1),
    finish_reason=string("stop, length or abort, of the last turn", isin=FINISH_REASONS),
    num_tokens=int32("tokens that it sampled in the last attempt, stop tokens included", ge=0),
    detail=string("why the environment could not continue in the last attempt; empty if it could"),
)

EVOLVE_VERDICTS = table(
    once("a_verifier_judges_an_answer_once", "uid", "verifier"),
    rows("what_cannot_be_read_rejects", pl.col("report").is_not_null() | (pl.col("verdict") == 0)),
    uid=string("the problem: prompts.uid"),
    round=int32("number of the round, from 1", ge=1),
    verifier=int32("number of the verifier, from 0", ge=0),
    verdict=int32(
        "1 = it accepts the answer, 0 = it rejects it, or could not be read", isin=[0, 1]
    ),
    report=string("what it says of the solution; null where it could not be read", nullable=True),
    attempts=int32("times that it was asked: 1 + evolve.format_retries at most", ge=1),
)

EVOLVE_SCORES = table(
    once("an_answer_stands_once", "uid", "mode", "round"),
    NO_SCORE,
    uid=string("the problem: prompts.uid"),
    data_source=string("task, by verl's name"),
    subset=string("part of that task"),
    mode=string(
        "round, or independent: a sample without memory and verifiers",
        isin=["round", "independent"],
    ),
    round=int32("number of the round, or of the sample, from 1", ge=1),
    answer=string("what the reward function extracted; null where it found none", nullable=True),
    outcome=string("ok, wrong, no_answer, timeout, error or aborted", isin=OUTCOMES),
    score=float64("reward of the answer; null where it could not be scored", nullable=True),
    correct=boolean("whether the answer is right; null where that was not checked", nullable=True),
    vote=int32(
        "1 where more than half of the verifiers accept; null without an answer or a vote",
        nullable=True,
        isin=[0, 1],
    ),
    is_chosen=boolean("whether the answer is the first of the memory after the last round"),
)
