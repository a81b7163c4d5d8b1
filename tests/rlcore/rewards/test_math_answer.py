"""Mathematical answers are compared by value; a substring is no proof."""

import pytest

from rlcore.rewards.math_answer import final_answer, math_answer
from rlcore.rewards.types import RewardRow
from rlcore.rewards.worker import RewardWorker
from schemas.errors import UserError
from schemas.rl import RewardFunction, RewardSection

NAME = "rlcore.rewards.math_answer:math_answer"
CASES = [
    ("2", "x = 12", False),
    ("2", "I get 2.", True),
    ("2", "first 2, in the end 3", False),
    ("2", r"so 3 + 4 = 7 and \boxed{2}", True),
    ("2", r"\boxed{2} or rather \boxed{12}", False),
    ("x = 2", "2x = 4\nx = 2", True),
    ("x = 2", "The answer is 2", True),
    ("x = 2", r"\boxed{x=12}", False),
    ("1/2", r"\boxed{\frac{1}{2}}", True),
    ("0.5", "#### 1/2", True),
    ("1,000", "Answer: 1000", True),
    ("5050", "The sum is $5050$.", True),
    ("x = 1, x = 3", r"\boxed{1, 3}", True),
    ("x = 1 or x = 3", r"\boxed{x = 3}", False),
    ("Paris", "The answer is paris.", True),
    ("Paris", r"\boxed{pairs}", False),
    ("Paris", "Paris is not it, the answer is Rome", False),
    ("(A)", r"\boxed{(A)}", True),
    ("(A)", r"\boxed{(B)}", False),
    ("2", "", False),
    ("2", r"\boxed{", False),
    ("2", r"\boxed{}", False),
]


@pytest.mark.parametrize(("truth", "response", "right"), CASES)
def test_right_and_wrong(truth: str, response: str, right: bool) -> None:
    result = math_answer("math", response, truth, {})
    assert result["acc"] is right, result
    assert result["score"] == float(right)


def test_the_answer_is_boxed_marked_or_last() -> None:
    assert final_answer(r"a \boxed{\frac{1}{2}} b") == r"\frac{1}{2}"
    assert final_answer("work\nThe answer is: 7\nthanks") == "7"
    assert final_answer("work\n12\n") == "12"
    assert final_answer(r"\boxed{1} then \boxed{2") == "1"


@pytest.mark.parametrize("truth", [None, "", "  "])
def test_a_row_without_truth_is_an_error(truth: str | None) -> None:
    """An empty answer stands in every response."""
    with pytest.raises(UserError, match="no ground_truth"):
        math_answer("math", "2", truth, {})


def test_a_response_that_never_ends_to_parse_costs_its_own_row() -> None:
    """sympy would compute this tower for ever."""
    worker = RewardWorker(RewardSection(functions=(RewardFunction(name=NAME),)))
    tower = r"\boxed{9^{9^{9^{9^{9}}}}}"
    rows = [
        RewardRow(f"t{i}", "math", text, "x = 2", {}, "stop", 1)
        for i, text in enumerate([tower, r"\boxed{2}"])
    ]
    try:
        hostile, fine = worker.score(rows, timeout_s=5.0)
    finally:
        worker.close()
    assert hostile.correct is not True
    assert (fine.outcome, fine.score, fine.answer) == ("ok", 1.0, "2")
