"""Problems become prompts with a truth to be judged by, or are refused by their number."""

from typing import Any

import pytest

from rlcore.api.problems import MATH_INSTRUCTION, MATH_REWARD, math_prompts
from rlcore.rewards.registry import check_functions
from schemas.errors import UserError


def test_numbers_and_text_are_answers_and_the_instruction_is_appended() -> None:
    problems = [{"problem": "1 + 1?", "answer": 2}, {"problem": "x?", "answer": " 1/2 "}]
    assert math_prompts(problems, MATH_INSTRUCTION) == [
        {"prompt": f"1 + 1? {MATH_INSTRUCTION}", "ground_truth": "2"},
        {"prompt": f"x? {MATH_INSTRUCTION}", "ground_truth": "1/2"},
    ]
    assert math_prompts(problems, "")[0]["prompt"] == "1 + 1?"


def test_an_answer_of_zero_is_an_answer() -> None:
    assert math_prompts([{"problem": "1 - 1?", "answer": 0}], "")[0]["ground_truth"] == "0"


@pytest.mark.parametrize(
    ("problems", "sentence"),
    [
        ([], "math_problems is empty; give rows of 'problem' and 'answer'"),
        (None, "math_problems is empty"),
        ([{"problem": "a", "answer": "b"}, {"problem": "a"}], r"math_problems\[1\] has no answer;"),
        ([{"problem": "a", "answr": "b"}], r"\[0\] has no answer; did you mean 'answr'\?"),
        ([{"problem": " ", "answer": "b"}], r"\[0\] has no problem"),
        ([{"problem": "a", "answer": ""}], r"\[0\] has no answer"),
        (["a problem"], r"\[0\] has no problem; each row needs problem and answer"),
    ],
)
def test_a_problem_without_answer_is_refused(problems: Any, sentence: str) -> None:
    """An empty answer would fit any response."""
    with pytest.raises(UserError, match=sentence):
        math_prompts(problems, "")


def test_the_reward_of_problems_can_be_had() -> None:
    check_functions([(MATH_REWARD["name"], MATH_REWARD["weight"], {})])
