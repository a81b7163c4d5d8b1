"""How often a run asks its judges is reckoned before it starts, and matches what it may cost."""

from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.plan.data_size import data_size
from rlcore.plan.dry_run import judge_calls, pair_calls, render_plan
from rlcore.plan.machine import check_calls, check_machine
from rlcore.plan.preconditions import StartCheck
from rlcore.recipes.load import load_recipe
from schemas.errors import UserError
from schemas.recipe import Recipe
from tests.rlcore.rewards.judges.asking import judge

FUNCTIONS = [{"name": "arithmetic"}, {"name": "judge", "options": {"judge": "main"}}]
SIZES = {
    "rl.iterations": 10,
    "rl.rollout.prompts": 8,
    "rl.rollout.samples": 4,
    "rl.validation.every": 5,
    "rl.validation.prompts": 6,
    "evaluate.max_prompts": 7,
    "evaluate.samples": 2,
    "evaluate.pass_k": [1],
}


def recipe(**changes: Any) -> Recipe:
    given = {"reward.functions": FUNCTIONS, "judges.main": judge().model_dump(), **SIZES}
    return load_recipe("quickstart", given | changes, directory=RECIPES)


def calls(**changes: Any) -> dict[str, int | None]:
    one = recipe(**changes)
    return judge_calls(one, data_size(one.data))


def test_calls_by_stage() -> None:
    """3 checkpoints, 2 subsets of 7 prompts, one greedy and two sampled completions each."""
    assert calls() == {"rl": 10 * 8 * 4, "validation": 3 * 6, "evaluate": 3 * 2 * 7 * 3}


def test_greedy_baselines_and_rounds_are_asked_about_too() -> None:
    greedy = calls(**{"rl.preset": "remax"})["rl"]
    assert greedy == 10 * 8 * (4 + 1)
    sampling = {"metric": "score", "batch_factor": 3, "max_rounds": 2}
    filtered = calls(**{"rl.algorithm.dynamic_sampling": sampling})["rl"]
    assert filtered == 10 * 8 * 3 * 2 * 4
    sampling["max_rounds"] = 0  # as many as it takes
    assert calls(**{"rl.algorithm.dynamic_sampling": sampling})["rl"] is None


def test_the_dry_run_says_what_may_be_paid_for_and_warns() -> None:
    text = render_plan(StartCheck(check_machine(recipe(**{"judges.main.max_calls": 464}))))
    line = "judge main: at most 464 calls (rl 320, validation 18, evaluate 126); max_calls = 464"
    assert line in text
    assert "max_calls = 464 is less" not in text
    text = render_plan(StartCheck(check_machine(recipe(**{"judges.main.max_calls": 463}))))
    assert "WARNING: judges.main.max_calls = 463 is less than that" in text


def test_a_ceiling_below_an_iteration_is_refused() -> None:
    check_calls(recipe(**{"judges.main.max_calls": 32}))
    expected = r"judges.main.max_calls = 31 is below the 32 responses of one RL iteration"
    with pytest.raises(UserError, match=expected):
        check_machine(recipe(**{"judges.main.max_calls": 31}))


def test_a_recipe_without_judges_has_no_such_section() -> None:
    assert "Judges" not in render_plan(
        StartCheck(check_machine(load_recipe("quickstart", directory=RECIPES)))
    )


def test_comparisons_are_two_calls_a_pair() -> None:
    """InstructGPT's K = 9 and 1,024 prompts are 73,728 calls, which nobody reckons in the head."""
    taste = judge(template="{response_a} {response_b}", max_calls=99_999).model_dump()
    changes = {
        "judges.taste": taste,
        "reward.functions": [{"name": "reward_model"}],
        "reward_model.preferences": {
            "kind": "samples",
            "ranked_by": "judge:taste",
            "prompts": 1024,
            "validation_prompts": 1,
            "max_new_tokens": 40,
        },
        "evaluate.max_prompts": 7,
        "evaluate.win_rate": {"judge": "taste"},
        "retrain": {"guards": ["win_rate"], "metric": "score"},
    }
    one = load_recipe("quickstart-rlhf", changes, directory=RECIPES)
    found = pair_calls(one, data_size(one.data), "taste")
    assert found == {"reward_model": 73_728 + 72, "evaluate": 2 * 2 * 7, "gate": 2 * 2 * 7}
    assert "reward_model" not in judge_calls(one, data_size(one.data))
    text = render_plan(StartCheck(check_machine(one)))
    assert "judge taste: at most 73,856 calls (reward_model 73,800, evaluate 28, gate 28)" in text
    few = load_recipe(
        "quickstart-rlhf", {**changes, "judges.taste.max_calls": 9}, directory=RECIPES
    )
    text = render_plan(StartCheck(check_machine(few)))
    assert "WARNING: judges.taste.max_calls = 9 is less than that" in text
