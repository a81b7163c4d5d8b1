"""How often a run asks its judges is reckoned before it starts, and matches what it may cost."""

from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.plan.data_size import data_size
from rlcore.plan.dry_run import judge_calls, render_plan
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
