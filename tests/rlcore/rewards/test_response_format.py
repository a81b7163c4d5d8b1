"""The reward ``format`` looks at form only, and its pattern is checked before any row."""

import pytest

from rlcore.rewards import response_format
from rlcore.rewards.registry import check_functions
from rlcore.rewards.types import Reward, RewardRow
from rlcore.rewards.unscored_rows import check_unscored
from rlcore.rewards.worker import RewardWorker
from schemas.errors import UserError
from schemas.rl import RewardFunction, RewardSection

THINK = r"<think>.*</think>\s*<answer>.*</answer>"


def row(response: str) -> RewardRow:
    return RewardRow("t", "math", response, None, {}, "stop", 1)


def scored(pattern: str, response: str, match: str = "whole") -> Reward:
    return response_format.scorer(pattern, match)(row(response))


@pytest.mark.parametrize(
    ("pattern", "match", "response", "score"),
    [
        (THINK, "whole", "<think>a\nb</think>\n<answer>7</answer>", 1.0),
        (THINK, "whole", "Well, <think>a</think><answer>7</answer>", 0.0),
        (THINK, "part", "Well, <think>a</think><answer>7</answer>", 1.0),
        (r"\\boxed\{", "part", r"so \boxed{7}", 1.0),
        (r"\\boxed\{", "whole", r"\boxed{7}", 0.0),
        ("", "whole", "", 1.0),
    ],
)
def test_one_for_the_form_and_zero_without(
    pattern: str, match: str, response: str, score: float
) -> None:
    reward = scored(pattern, response, match)
    assert (reward.outcome, reward.score, reward.correct) == ("ok", score, None)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, r"^reward.functions\[0\].options.pattern is missing, and 'format' needs it; add it"),
        ({"pattern": "(a"}, r"no regular expression of Python \(missing \), unterminated"),
        ({"pattern": "(" * 5_000 + ")" * 5_000}, "no regular expression of Python"),
        ({"pattern": 7}, "option pattern = 7 of reward 'format' is not text"),
        ({"pattern": "a", "match": "hole"}, "must be whole or part; did you mean 'whole'"),
        ({"patern": "a"}, "did you mean 'pattern'"),
    ],
)
def test_options_are_refused_before_any_row(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check_functions([("format", 1.0, options)])


@pytest.mark.slow
def test_a_pattern_that_backtracks_for_ever_ends_at_the_row_limit() -> None:
    """Nothing inside the process can interrupt Python's matcher."""
    functions = (RewardFunction(name="format", options={"pattern": "(a+)+b"}),)
    worker = RewardWorker(RewardSection(functions=functions))
    try:
        asked = [row("a" * 60), row("aab")]
        hung, done = (parts["format"] for parts in worker.score(asked, 1.0, kind="rows"))
    finally:
        worker.close()
    assert (hung.outcome, hung.score) == ("timeout", None)
    assert hung.detail == (
        "no score of format (its pattern '(a+)+b' backtracks) within 1 s and 15 s for loading; its"
        " process was killed"
    )
    with pytest.raises(UserError, match=r"of format \(its pattern '\(a\+\)\+b' backtracks\)"):
        check_unscored([(hung.outcome, hung.detail)], RewardSection(functions=functions))
    assert (done.outcome, done.score) == ("ok", 1.0)
