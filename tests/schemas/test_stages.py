"""A stage that a run would not come to is refused by name, with the stages there are."""

from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from schemas.errors import UserError
from schemas.stages import Stage, check_stages, stage_parents


def test_stages_come_after_all_that_they_read() -> None:
    for name in ("quickstart", "quickstart-rlhf", "smollm2-dpo"):
        before: list[Stage] = []
        for stage, parents in stage_parents(load_recipe(name, directory=RECIPES)).items():
            assert set(parents.values()) <= set(before)
            before.append(stage)


def test_preference_comes_before_rl_or_instead_of_it() -> None:
    """What follows begins with its policy, and the last one is exported."""
    pairs = {"data": {"kind": "file", "path": "p.jsonl"}, "max_tokens": 64}
    before = load_recipe("quickstart", {"preference": pairs}, directory=RECIPES)
    plan = stage_parents(before)
    assert plan[Stage.PREFERENCE]["policy"] == Stage.SFT
    assert plan[Stage.RL]["policy"] == Stage.PREFERENCE
    assert plan[Stage.EXPORT]["policy"] == Stage.RL
    assert {"sft", "preference", "rl"} <= set(plan[Stage.EVALUATE])
    plan = stage_parents(load_recipe("smollm2-dpo", directory=RECIPES))
    assert Stage.RL not in plan
    assert plan[Stage.EXPORT]["policy"] == Stage.PREFERENCE
    assert "rl" not in plan[Stage.EVALUATE]


@pytest.mark.parametrize(
    ("refresh", "until", "overrides", "sentence"),
    [
        (["evalute"], None, {}, r"^refresh = 'evalute' is no stage .*did you mean 'evaluate'"),
        ([], "reward_model", {}, r"^until = 'reward_model' is no stage .*as reward_model = null"),
        (["sft"], None, {"sft.enabled": False}, r"as sft.enabled = false; it has base_model, "),
        (["rl"], "sft", {}, r"^refresh = 'rl' comes after until = 'sft'"),
    ],
)
def test_a_stage_that_the_recipe_lacks_is_one_sentence(
    refresh: list[str], until: str | None, overrides: dict[str, Any], sentence: str
) -> None:
    recipe = load_recipe("quickstart", overrides, directory=RECIPES)
    with pytest.raises(UserError, match=sentence):
        check_stages(recipe, refresh, until)


def test_a_stage_that_is_there_passes() -> None:
    recipe = load_recipe("quickstart", directory=RECIPES)
    check_stages(recipe, [Stage.RL, Stage.EVALUATE], Stage.EVALUATE)
