"""Held-out words are in no training prompt, and a reader of the prompt knows what is checked."""

import json

import pytest

from rlcore.data.generators import generated_rows, prompts, words_of
from rlcore.rewards.instructions import scorer
from rlcore.rewards.types import RewardRow
from schemas.data import InstructionsSource
from schemas.errors import UserError

SOURCE = InstructionsSource(train=300, validation=20, test=50)


def test_words_of_the_splits_are_disjoint_and_prompts_distinct() -> None:
    train, validation, test = (set(words_of(s)) for s in ("train", "validation", "test"))
    assert not train & validation
    assert not (train | validation) & test
    assert min(map(len, (train, validation, test))) >= 8
    made = list(prompts(SOURCE, 0))
    assert len({one.question for one in made}) == len(made) == 370
    assert made == list(prompts(SOURCE, 0))
    assert made != list(prompts(SOURCE, 1))


def test_a_prompt_says_all_that_its_truth_checks() -> None:
    for row in generated_rows(SOURCE, 3):
        asked = json.loads(row.ground_truth or "")
        (message,) = row.prompt
        low, high = asked["length"]
        for part in (*asked["words"], f"{low} to {high} words"):
            assert part in message["content"]
        first, second = asked["words"]
        response = " ".join(["The", first, "and", second, *["so"] * (low - 5), "meet."])
        truth = RewardRow("t", "d", response, row.ground_truth, {}, "stop", 5)
        assert scorer()(truth).correct


def test_more_prompts_than_there_are_are_refused() -> None:
    source = InstructionsSource(train=1, validation=100_000, test=1)
    with pytest.raises(UserError, match=r"validation = 100000 .* lower it"):
        list(prompts(source, 0))
