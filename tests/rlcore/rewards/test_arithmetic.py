"""The reward of the arithmetic task pays for a finished, bounded answer and for nothing else."""

import pytest

from rlcore.rewards import arithmetic
from rlcore.rewards.types import RewardRow
from schemas.errors import UserError


def row(response: str, truth: str | None, finish: str = "stop") -> RewardRow:
    return RewardRow("t", "arithmetic", response, truth, {}, finish, 5)


ARITHMETIC = [
    ("78+13:11,9=91\n91-50:01,4=41\n#### 41", "stop", "ok"),
    ("#### 41", "stop", "ok"),
    ("#### 041", "stop", "ok"),
    ("#### 42", "stop", "wrong"),
    ("#### 9999", "stop", "wrong"),
    ("#### 41", "length", "no_answer"),
    ("#### 41", "abort", "no_answer"),
    ("#### 41\n", "stop", "no_answer"),
    ("#### 41 ", "stop", "no_answer"),
    (" #### 41", "stop", "no_answer"),
    ("####41", "stop", "no_answer"),
    ("#### 00041", "stop", "no_answer"),
    ("#### 41\n1+1", "stop", "no_answer"),
    ("#### ٤١", "stop", "no_answer"),
    ("", "stop", "no_answer"),
    ("\0🦆", "stop", "no_answer"),
]


@pytest.mark.parametrize(("response", "finish", "outcome"), ARITHMETIC)
def test_arithmetic_needs_a_finished_bounded_answer(
    response: str, finish: str, outcome: str
) -> None:
    reward = arithmetic.scorer()(row(response, "41", finish))
    assert (reward.outcome, reward.score) == (outcome, float(outcome == "ok"))


@pytest.mark.parametrize("truth", [None, "", "4.5", "x"])
def test_arithmetic_refuses_a_ground_truth_that_is_none(truth: str | None) -> None:
    with pytest.raises(UserError, match="is not a number in digits"):
        arithmetic.scorer()(row("#### 41", truth))
