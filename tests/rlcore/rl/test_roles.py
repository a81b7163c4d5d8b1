"""When learners work side by side."""

import os
from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from rlcore.rl.roles import have_own_places
from schemas.recipe import Recipe

RAY = {"hardware.cluster": "ray"}
TWO_RANKS = {"hardware.learner.ranks": 2, "hardware.learner.gpus_per_rank": 1}


@pytest.mark.parametrize(
    ("over", "device", "reference", "critic", "own"),
    [
        ({}, "cpu", True, True, False),  # one process does it all
        (RAY, "cpu", False, True, True),
        (RAY, "cpu", True, True, False),  # three on two cores
        (RAY, "cpu", False, False, False),  # nobody beside the policy
        ({**RAY, "hardware.learner.threads": 2}, "cpu", False, True, False),
        ({**RAY, **TWO_RANKS}, "cpu", False, True, False),
        ({**RAY, **TWO_RANKS}, "cuda", True, True, True),
        (RAY, "cuda", True, True, False),  # shares of one GPU
        ({**RAY, "hardware.ray_address": "head:6379"}, "cpu", False, True, False),
    ],
)
def test_learners_with_places_of_their_own_work_side_by_side(
    over: dict[str, Any],
    device: str,
    reference: bool,
    critic: bool,
    own: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    settings = {"hardware.learner.threads": 1, **over}
    recipe = load_recipe("quickstart-ppo", settings, directory=RECIPES)
    monkeypatch.setattr(Recipe, "has_reference_worker", reference)
    rl = recipe.rl if critic else recipe.rl.model_copy(update={"critic": None})
    assert have_own_places(recipe.model_copy(update={"rl": rl}), device) is own
