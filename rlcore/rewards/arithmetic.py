"""Reward of the generated arithmetic task: a right, bounded, finished answer on the last line."""

import re

from rlcore.rewards.types import Reward, RewardRow, Scorer
from schemas.errors import UserError
from schemas.outcomes import FinishReason

_LAST_LINE = re.compile(r"#### ([0-9]{1,4})")


def scorer() -> Scorer:
    """Return the reward function: 1 or 0.

    1 when the response ended by itself, its last line is ``#### `` and 1 to 4 digits, and the
    integer is the ground truth. A response cut off at the length limit is no answer, whatever it
    contains.
    """
    return _score


def check_truth(ground_truth: str | None) -> None:
    """Raise UserError for a ground truth that no answer can have."""
    if ground_truth is None or not ground_truth.isdecimal():
        raise UserError(f"the ground_truth {ground_truth!r:.80} is not a number in digits")


def _score(row: RewardRow) -> Reward:
    check_truth(row.ground_truth)
    assert row.ground_truth is not None, "it was looked at"
    if row.finish_reason != FinishReason.STOP:
        return Reward.no_answer(row, f"ended by {row.finish_reason}, not by itself")
    match = _LAST_LINE.fullmatch(row.response.rpartition("\n")[2])
    if match is None:
        return Reward.no_answer(row, "the last line is not '#### ' and 1 to 4 digits")
    right = int(match[1]) == int(row.ground_truth)
    return Reward.of(row, float(right), right, answer=str(int(match[1])))
