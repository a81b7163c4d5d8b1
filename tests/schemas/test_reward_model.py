"""Preferences of a reward model are one kind, with a range that is one."""

from pathlib import Path
from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from schemas.errors import UserError
from schemas.reward_model import FilePreferences, RewardModelSection, SampledPreferences
from tests.rlcore.rewards.judges.asking import judge


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


MODEL = {"name": "reward_model"}
RANKED: list[tuple[str, list[dict], str]] = [
    ("verifier", [MODEL], "holds no function that checks it; add one, of weight 0"),
    ("mine.py:taste", [MODEL], "ranked_by = 'mine.py:taste' is not in reward.functions; add it"),
    (
        "mine.py:tast",
        [MODEL, {"name": "lib/mine.py:taste", "weight": 0}],
        "is not in reward.functions; did you mean 'mine.py:taste'",
    ),
    ("reward_model", [MODEL], "ranked_by = 'reward_model' is the model that is to be trained"),
    ("verifer", [MODEL], "did you mean 'verifier'?"),
    ("judge:taste", [MODEL], "ranked_by = 'taste' is not in the section judges, there is none"),
    ("reward_model:mine", [MODEL], "'reward_model:mine' is not in reward.functions"),
]


STARTS: list[tuple[str, dict, str]] = [
    ("reward_modle", {}, "init = 'reward_modle' is not policy, reward_model or reward_model:NAME"),
    ("reward_model:mine", {}, "names 'reward_model:mine' and reward_models has none"),
    (
        *("reward_model:mine", {"mine": {"url": "http://127.0.0.1:1", "version": "1"}}),
        "is served at a url, and a critic is trained",
    ),
]


def test_a_base_is_not_below_an_adapter_and_a_revision_needs_one() -> None:
    path = {"model.path": "m", "model.from_scratch": None, "model.adapter.rank": 8}
    with pytest.raises(UserError, match="is another model than the one that"):
        load_recipe("quickstart-rlhf", {**path, "reward_model.base": "b"}, directory=RECIPES)
    stages = {"model.adapter.stages": ["rl"], "reward_model.base": "b"}
    load_recipe("quickstart-rlhf", {**path, **stages}, directory=RECIPES)
    with pytest.raises(ValueError, match="base_revision = 'main' is of no model"):
        RewardModelSection(base_revision="main")


@pytest.mark.parametrize(("init", "models", "words"), STARTS)
def test_a_critic_starts_from_what_there_is(init: str, models: dict, words: str) -> None:
    given = {"rl.critic.init": init, "reward_models": models}
    with pytest.raises(UserError, match=words) as refusal:
        load_recipe("quickstart-rlhf", given, directory=RECIPES)
    assert "\n" not in str(refusal.value)
    brought = {"rl.critic.init": "reward_model:mine", "reward_models": {"mine": {"path": "a"}}}
    load_recipe("quickstart-rlhf", brought, directory=RECIPES)


@pytest.mark.parametrize(("by", "functions", "words"), RANKED)
def test_what_cannot_rank_is_refused(by: str, functions: list[dict], words: str) -> None:
    given = {"reward.functions": functions, "reward_model.preferences.ranked_by": by}
    with pytest.raises(UserError, match=words) as refusal:
        load_recipe("quickstart-rlhf", given, directory=RECIPES)
    assert "\n" not in str(refusal.value)


def key(**changes: Any) -> dict[str, Any]:
    functions = [MODEL, {"name": "lib/mine.py:taste", "weight": 0}]
    given = {"reward.functions": functions, **changes}
    return load_recipe("quickstart-rlhf", given, directory=RECIPES).slice_for("reward_model")


def test_what_ranks_is_in_the_key_wherever_its_file_lies() -> None:
    by = "reward_model.preferences.ranked_by"
    plain = load_recipe("quickstart-rlhf", directory=RECIPES).slice_for("reward_model")
    assert "ranked_by" not in plain["reward_model"]["preferences"], "a key of before it"
    assert key(**{by: "mine.py:taste"}) == key(**{by: "lib/mine.py:taste"})
    asked = judge(template="{response_a} {response_b}").model_dump()
    found = key(**{by: "judge:taste", "judges.taste": asked})
    assert found["judges"].keys() == {"taste"}
    assert found["reward_model"]["preferences"]["ranked_by"] == "judge/taste"


def test_a_reward_model_that_ranks_is_in_the_key_and_others_are_not(tmp_path: Path) -> None:
    models = {name: {"path": str(tmp_path)} for name in ("one", "two")}
    functions = [MODEL, *({"name": f"reward_model:{name}", "weight": 0} for name in models)]
    given = {"reward.functions": functions, "reward_models": models}
    found = key(**given, **{"reward_model.preferences.ranked_by": "reward_model:two"})
    assert found["reward_models"].keys() == {"two"}
