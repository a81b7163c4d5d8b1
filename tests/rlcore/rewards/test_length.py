"""The reward ``length`` is the penalty of DAPO's overlong shaping, by sampled tokens."""

import numpy as np
import pytest

from rlcore.algorithms.overlong import overlong_penalty
from rlcore.rewards import length
from rlcore.rewards.registry import check_functions
from rlcore.rewards.types import RewardRow
from schemas.errors import UserError


def penalty(soft: int, hard: int, tokens: int) -> float | None:
    # The text has another length than the tokens.
    return length.scorer(soft, hard)(RewardRow("t", "d", "x" * 9, None, {}, "length", tokens)).score


@pytest.mark.parametrize(("soft", "hard"), [(16384, 20480), (0, 10), (10, 10), (0, 0), (3, 7)])
def test_it_equals_the_shaping_of_the_algorithm(soft: int, hard: int) -> None:
    tokens = sorted({0, 1, soft, soft + 1, (soft + hard) // 2, hard - 1, hard, hard + 1, 10 * hard})
    tokens = [n for n in tokens if n >= 0]
    expected = overlong_penalty(np.array(tokens), max_tokens=hard, cache_tokens=hard - soft)
    assert [penalty(soft, hard, n) for n in tokens] == pytest.approx(list(expected))


def test_it_judges_no_correctness() -> None:
    reward = length.scorer(1, 2)(RewardRow("t", "d", "x", None, {}, "stop", 5))
    assert (reward.outcome, reward.correct, reward.score) == ("ok", None, -1.0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"soft": 5}, r"options.hard is missing, and 'length' needs it"),
        ({"soft": 5, "hard": 4}, "soft = 5 of reward 'length' exceeds hard = 4"),
        ({"soft": -1, "hard": 4}, "soft = -1 of reward 'length' must be a whole number"),
        ({"soft": 1.5, "hard": 4}, r"soft = 1\.5 of reward 'length' must be a whole number"),
        ({"soft": 1, "hard": True}, "hard = True of reward 'length' must be a whole number"),
        ({"soft": 1, "hard": "4"}, "hard = '4' of reward 'length' must be a whole number"),
    ],
)
def test_limits_are_refused_before_any_row(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check_functions([("length", 1.0, options)])
