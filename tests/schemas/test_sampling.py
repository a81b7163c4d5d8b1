"""A recipe may ask for what engines sample with, and for nothing else."""

import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from schemas.errors import UserError
from schemas.sampling import MAX_TEMPERATURE, MIN_TEMPERATURE

PATHS = (
    "rl.rollout.temperature",
    "evaluate.temperature",
    "reward_model.preferences.temperature",
)


@pytest.mark.parametrize("path", PATHS)
def test_a_temperature_is_refused_before_anything_starts(path: str) -> None:
    """The engine refused it after SFT, or after all of RL."""
    for bad in (2.5, 0.005, 0.0, -1.0, float("nan")):
        with pytest.raises(UserError, match=f"{path} = {bad}"):
            load_recipe("quickstart-rlhf", {path: bad}, directory=RECIPES)
    for good in (MIN_TEMPERATURE, 1.0, MAX_TEMPERATURE):
        load_recipe("quickstart-rlhf", {path: good}, directory=RECIPES)


def test_what_a_later_stage_would_refuse_is_refused_first() -> None:
    sentence = "top_k = 0 would leave no token to sample; set top_k to -1"
    with pytest.raises(UserError, match=sentence):
        load_recipe("quickstart", {"rl.rollout.top_k": 0}, directory=RECIPES)
