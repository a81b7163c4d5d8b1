"""Preferences of a reward model are one kind, with a range that is one."""

import pytest

from schemas.reward_model import FilePreferences, RewardModelSection, SampledPreferences


def test_the_most_responses_are_not_fewer_than_the_least() -> None:
    with pytest.raises(ValueError, match="max_responses = 3 is below min_responses = 4; raise it"):
        SampledPreferences(min_responses=4, max_responses=3)
    assert SampledPreferences(min_responses=4, max_responses=4).max_responses == 4
    assert SampledPreferences(max_responses=3).min_responses == 3, "a default moves out of the way"
    assert SampledPreferences(min_responses=12).max_responses == 12


@pytest.mark.parametrize("count", [0, 1])
def test_one_response_has_nothing_to_be_compared_with(count: int) -> None:
    with pytest.raises(ValueError, match="min_responses"):
        SampledPreferences(min_responses=count)


def test_preferences_are_known_by_their_kind() -> None:
    file = {"kind": "file", "path": "p.jsonl"}
    section = RewardModelSection.model_validate({"preferences": file})
    assert section.preferences == FilePreferences(path="p.jsonl")
    with pytest.raises(ValueError, match="prompts"):
        RewardModelSection.model_validate({"preferences": file | {"prompts": 3}})
