"""A fork that makes another model, or has nothing to do, is refused before it starts."""

from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.plan.preconditions import check_fits
from rlcore.recipes.load import load_recipe
from schemas.errors import UserError
from schemas.recipe import Recipe


def recipe(name: str = "quickstart", **changes: Any) -> Recipe:
    return load_recipe(
        name, {k.replace("__", "."): v for k, v in changes.items()}, directory=RECIPES
    )


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (recipe(model__from_scratch__num_layers=3), "model.from_scratch.num_layers 2 -> 3 makes"),
        (
            recipe(data__sources__0__train=4000),
            "data.sources.0.train .* -> 4000 makes",
        ),
        (recipe("quickstart-ppo"), "rl.critic is set and the checkpoint holds no critic"),
        (recipe(rl__iterations=20), "rl.iterations = 20 .* give -o rl.iterations=80"),
    ],
)
def test_what_does_not_fit_is_one_sentence(after: Recipe, says: str) -> None:
    with pytest.raises(UserError, match=rf"^latest@60 .*{says}"):
        check_fits(recipe(rl__iterations=60), after, "latest@60", 60)


def test_what_rl_does_with_it_is_free() -> None:
    after = recipe(rl__iterations=100, rl__rollout__samples=16, rl__update__optimizer__lr=1e-4)
    check_fits(recipe(rl__iterations=60), after, "latest@60", 60)
