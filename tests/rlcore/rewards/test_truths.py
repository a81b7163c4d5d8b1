"""What a built-in reward can never pay for is told with its row, before anything is trained."""

import pytest

from rlcore.rewards.truths import Truth, check_truths
from schemas.errors import UserError
from schemas.rl import RewardFunction


def truth(ground_truth: str | None, row: int = 0, source: str = "s") -> Truth:
    return Truth(f"file row {row}", source, "rule", ground_truth)


NUMERIC = RewardFunction(name="gsm8k", options={"mode": "numeric"})
STRICT, MATH = RewardFunction(name="gsm8k"), RewardFunction(name="math")
CODE = RewardFunction(name="code", options={"partial": True})
ARITHMETIC = RewardFunction(name="arithmetic")


@pytest.mark.parametrize(
    ("function", "ground_truth"),
    [
        (STRICT, "72"),
        (STRICT, "-72.5"),
        (NUMERIC, "$1,000.00"),
        (MATH, r"\boxed{5}"),
        (MATH, "north"),
        (MATH, r"#### So it is \boxed{5}."),
        (MATH, "½"),
        (ARITHMETIC, "12"),
        (RewardFunction(name="instructions"), '{"words": ["river"]}'),
        (CODE, '{"inputs": ["1"], "outputs": ["2"]}'),
        (RewardFunction(name="length", options={"soft": 1, "hard": 2}), None),
        (RewardFunction(name="own:f"), None),
    ],
)
def test_what_can_be_read_passes(function: RewardFunction, ground_truth: str | None) -> None:
    check_truths([truth(ground_truth)], [function])


@pytest.mark.parametrize(
    ("function", "ground_truth", "why"),
    [
        (STRICT, "3/4", "the ground_truth '3/4' is not what mode strict reads"),
        (STRICT, "1,000", "no commas"),
        (STRICT, "$72", "is not what mode strict reads"),
        (STRICT, "", "is not what mode strict reads"),
        (NUMERIC, "1/7 apples", "is not a number"),
        (MATH, " ", "holds neither letter nor digit"),
        (MATH, r"So it is $\boxed{}$.", "the ground_truth '' holds neither letter nor digit"),
        (MATH, "1 + 1 = 2\n#### 2", "is a solution and no answer"),
        (ARITHMETIC, "7.5", "is not a number in digits"),
        (CODE, "print(1)", "is not JSON with 'inputs' and 'outputs'"),
        (CODE, '{"inputs": [], "outputs": []}', "at least one test"),
        (MATH, None, "it has no ground truth (1 of 2 prompts); name the column that holds it"),
        (RewardFunction(name="instructions"), '{"word": ["river"]}', "asks for 'word', which"),
    ],
)
def test_what_cannot_is_named_with_its_row(
    function: RewardFunction, ground_truth: str | None, why: str
) -> None:
    texts = {"code": '{"inputs": ["1"], "outputs": ["2"]}', "instructions": '{"length": [1, 2]}'}
    readable = texts.get(function.name, "12")
    with pytest.raises(UserError, match="file row 7: ") as error:
        check_truths([truth(readable), truth(ground_truth, 7)], [function])
    assert why in str(error.value)
    assert "(1 of 2 prompts)" in str(error.value)


def test_rows_of_others_and_of_functions_without_weight_are_left_alone() -> None:
    """Rows for a judge have no truth beside those of math, and a watcher may read some only."""
    math = RewardFunction(name="math", data_sources=("maths",))
    rows = [truth("5", source="maths"), truth(None, source="essays")]
    check_truths(rows, [math, RewardFunction(name="gsm8k", weight=0)])
    with pytest.raises(UserError, match=r"reward.functions\[0\] = 'gsm8k'"):
        check_truths(rows[1:], [RewardFunction(name="gsm8k", weight=0)])
