"""What must hold before an evolving starts."""

import pytest

from flows.paths import RECIPES
from rlcore.plan.preconditions import check_evolve
from rlcore.recipes.load import load_recipe
from schemas.errors import UserError
from schemas.rl import RewardSection


def checked(name: str) -> None:
    check_evolve(load_recipe(name, directory=RECIPES))


def test_recipes_of_problems_with_answers_can_be_evolved() -> None:
    checked("quickstart")
    checked("calculator-grpo")


def test_rewards_that_check_no_answer_are_refused() -> None:
    """There would be no accuracy to report."""
    recipe = load_recipe("quickstart-rlhf", directory=RECIPES)
    reward = RewardSection.model_validate({"functions": [{"name": "reward_model"}]})
    with pytest.raises(UserError, match=r"no function that checks correctness.*add one"):
        check_evolve(recipe.model_copy(update={"reward": reward}))


def test_a_game_is_refused() -> None:
    with pytest.raises(UserError, match="'text-game' is a game, which has no answer"):
        checked("text-game-grpo")
