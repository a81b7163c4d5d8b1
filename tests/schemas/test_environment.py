"""The section of environments, and what it demands of the other sections."""

from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from schemas.environment import EnvironmentSection
from schemas.errors import UserError
from schemas.recipe import Recipe


def recipe(name: str = "calculator-grpo", **changes: Any) -> Recipe:
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return load_recipe(name, dotted, directory=RECIPES)


def test_games_have_more_turns_than_tools() -> None:
    assert EnvironmentSection(name="python").turns == 4
    assert EnvironmentSection(name="text-game").turns == 50
    assert EnvironmentSection(name="text-game", max_turns=3).turns == 3


def test_where_a_file_lies_and_how_many_work_changes_no_result() -> None:
    one = EnvironmentSection(name="/here/envs.py:Shop", workers=1)
    other = EnvironmentSection(name="/there/envs.py:Shop", workers=4, max_turns=4)
    assert one.identity == other.identity
    assert one.identity != EnvironmentSection(name="/here/envs.py:Shop", max_turns=5).identity


def test_an_environment_is_part_of_the_stages_that_it_changes() -> None:
    made, given = recipe(), recipe("gsm8k-tool-grpo")
    for stage in ("prepare_data", "rl", "evaluate"):
        assert made.slice_for(stage)["environment"]["name"] == "calculator"
        assert given.slice_for(stage)["environment"]["name"] == "python"
    assert "environment" in made.slice_for("base_model")
    assert "environment" not in given.slice_for("base_model")
    for stage in ("sft", "export"):
        assert "environment" not in made.slice_for(stage)
    assert "environment" not in recipe("quickstart").slice_for("rl")


def test_the_longest_episode_is_reckoned() -> None:
    assert recipe().longest_sequence(32) == 80 + 2 * 32 + 1 * (16 + 32)
    assert recipe("quickstart").longest_sequence(40) == 80 + 40


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        (
            "calculator-grpo",
            {"environment__max_turns": 9},
            r"9 turns of rl.rollout.max_new_tokens \+ 8 answers .* exceeds model.max_tokens = 192",
        ),
        (
            "calculator-grpo",
            {"environment__max_observation_tokens": 300},
            "leaves no room for a turn in model.max_tokens = 192; lower it",
        ),
        ("calculator-grpo", {"environment": None}, "data.sources holds kind environment and the"),
        (
            "quickstart",
            {"reward__functions": [{"name": "environment"}]},
            "reward.functions names 'environment' and the section environment is null",
        ),
        (
            "quickstart-rlhf",
            {"environment": {"name": "python", "max_turns": 1}},
            "reward_model.preferences are sampled as single answers",
        ),
        ("gsm8k-tool-grpo", {"environment__name": "mcp"}, "set command"),
        ("gsm8k-tool-grpo", {"environment__command": ["a"]}, "starts no server; leave it out"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    name: str, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        recipe(name, **changes)
