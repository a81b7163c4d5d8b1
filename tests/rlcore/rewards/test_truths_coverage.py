"""A dataset whose rows nobody would score ends before SFT, not after it."""

import polars as pl
import pytest

from rlcore.rewards.truths import check_covered
from schemas.errors import UserError
from schemas.rl import RewardFunction

PROMPTS = pl.DataFrame(
    {"data_source": ["gsm8k", "gsm8k", "chat"], "reward_style": ["rule", "rule", "model"]}
)


@pytest.mark.parametrize(
    "functions",
    [
        [RewardFunction(name="gsm8k")],
        [
            RewardFunction(name="gsm8k", data_sources=("gsm8k",)),
            RewardFunction(name="length", styles=("model", "judge")),
        ],
    ],
)
def test_functions_that_score_every_prompt_pass(functions: list[RewardFunction]) -> None:
    check_covered(PROMPTS, functions)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ({"data_sources": ["gsm8k"]}, ["the 1 prompts of data_source 'chat'", "'model'"]),
        ({"styles": ["judge"]}, ["none scores", "data.filters"]),
        ({"data_sources": ["gsm8", "chat"]}, ["names 'gsm8'", "did you mean 'gsm8k'"]),
    ],
)
@pytest.mark.parametrize("frame", [PROMPTS, PROMPTS.lazy()], ids=["held", "lazy"])
def test_rows_without_a_function_are_refused(
    frame: pl.DataFrame | pl.LazyFrame, function: dict, words: list[str]
) -> None:
    with pytest.raises(UserError) as error:
        check_covered(frame, [RewardFunction.model_validate({"name": "gsm8k", **function})])
    assert all(part in str(error.value) for part in words), error.value
