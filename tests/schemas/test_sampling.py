"""A recipe may ask for what engines sample with, and for nothing else."""

from typing import Any

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


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"rl.rollout.top_k": 0}, "top_k = 0 would leave no token to sample; set top_k to -1"),
        ({"rl.rollout.prompts": 4098}, "rl.rollout.prompts = 4098 exceeds the 4096 training promp"),
        (
            {"data.sources": [{"kind": "gsm8k", "limit": 100}], "data.deduplicate": "near"},
            "rl.rollout.prompts = 128 exceeds the 100 training prompts that data.sources hold at m",
        ),
        (
            {
                "data.sources": [{"kind": "file", "path": "a.jsonl", "limit": 130}],
                "sft.batch_size": 200,
            },
            "sft.batch_size = 200 exceeds the 130 training demonstrations",
        ),
        (
            {"data.sources": [{"kind": "gsm8k", "demonstrations": False}]},
            "sft.batch_size = 32 exceeds the 0 training demonstrations .* set sft.enabled to false",
        ),
    ],
)
def test_what_a_later_stage_would_refuse_is_refused_first(
    overrides: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        load_recipe("quickstart", overrides, directory=RECIPES)


def test_sources_of_unknown_length_are_left_to_preparation() -> None:
    sources = [{"kind": "file", "path": "a.jsonl", "limit": 5}, {"kind": "hub", "name": "a/b"}]
    load_recipe("quickstart", {"data.sources": sources}, directory=RECIPES)
