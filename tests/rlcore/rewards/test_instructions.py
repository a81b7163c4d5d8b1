"""What a prompt asks of a response's text is checked as a careful reader would."""

import json
from typing import Any

import pytest

from rlcore.rewards.instructions import scorer
from rlcore.rewards.types import Reward, RewardRow
from schemas.errors import UserError


def scored(response: str, **asked: Any) -> Reward:
    return scorer()(RewardRow("t", "d", response, json.dumps(asked), {}, "stop", 5))


@pytest.mark.parametrize(
    ("response", "asked"),
    [
        ("The river is old.", {"words": ["river", "Old"]}),
        ("River-side walks", {"words": ["river"]}),
        ("It's 3.5 miles long.", {"sentences": 1}),
        ("One. Two! Three?", {"sentences": 3}),
        ("No end mark", {"sentences": 1}),
        ("a b c", {"length": [3, 3], "case": "lower"}),
        ("LOUD AND CLEAR", {"case": "upper"}),
        ('{"key": 1, "other": 2}', {"json": ["key"]}),
        ("Now we go!", {"begins": "now", "ends": "!", "without": ["rivers"]}),
    ],
)
def test_what_is_kept_pays_one(response: str, asked: dict[str, Any]) -> None:
    reward = scored(response, **asked)
    assert (reward.outcome, reward.score, reward.correct) == ("ok", 1.0, True)


@pytest.mark.parametrize(
    ("response", "asked", "score"),
    [
        ("The rivers are old.", {"words": ["river", "old"]}, 0.5),
        ("a b c d", {"length": [1, 3]}, 0.0),
        ("One. Two.", {"sentences": 1, "length": [1, 3]}, 0.5),
        ("123", {"case": "lower"}, 0.0),
        ("```json\n{}\n```", {"json": ["key"]}, 0.0),
        ("[" * 100_000, {"json": ["key"]}, 0.0),
        ("The river.", {"without": ["river", "stone"]}, 0.5),
        ("", {"without": ["river"]}, 0.0),
        (" \n", {"length": [0, 3]}, 0.0),
    ],
)
def test_what_is_broken_pays_the_share_that_is_kept(
    response: str, asked: dict[str, Any], score: float
) -> None:
    reward = scored(response, **asked)
    assert (reward.score, reward.correct) == (score, False)


def test_what_is_broken_is_named() -> None:
    assert scored("a b", words=["river"], length=[3, 4]).detail == (
        "not kept: words 'river', length [3, 4]"
    )


@pytest.mark.parametrize(
    ("truth", "words"),
    [
        (None, "is no JSON object of checks"),
        ("72", "is no JSON object of checks"),
        ("{}", "is no JSON object of checks"),
        ('{"word": ["a"]}', "did you mean 'words'"),
        ('{"length": 3}', "length = 3, which it cannot be"),
        ('{"words": []}', "words = \\[\\], which it cannot be"),
        ('{"case": "title"}', "case = 'title'"),
    ],
)
def test_a_truth_that_cannot_be_checked_is_refused(truth: str | None, words: str) -> None:
    with pytest.raises(UserError, match=words):
        scorer()(RewardRow("t", "d", "x", truth, {}, "stop", 5))
