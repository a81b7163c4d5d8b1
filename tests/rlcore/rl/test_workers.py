"""The workers of a run: all of a kind or none, and a learner that is released holds nothing."""

from pathlib import Path

import pytest

from flows.paths import RECIPES
from rlcore.cluster.types import Placement
from rlcore.recipes.load import load_recipe
from rlcore.rl.workers import Workers
from schemas.errors import UserError
from tests.flows.small_run import INLINE, SMALL
from tests.rlcore.learner.samples import write_tiny_model


def test_learners_follow_each_other_in_one_run(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    recipe = load_recipe("quickstart", {**SMALL, **INLINE}, directory=RECIPES)
    with Workers(recipe) as workers:
        first = workers.learner(tmp_path, recipe.sft.optimizer, name="sft-learner", stage="sft")
        before = first.stamp()
        workers.release(first)
        with pytest.raises(AttributeError):
            first.stamp()
        assert (
            workers.learner(tmp_path, recipe.sft.optimizer, name="learner", stage="rl").stamp()
            == before
        )
        workers.restart()
        assert workers.learner(tmp_path, None, name="reference").stamp() == before


def test_gpus_are_counted_for_all_workers_before_one_starts() -> None:
    """Ray would wait for the last of them for ever."""
    recipe = load_recipe("quickstart", {**SMALL, **INLINE}, directory=RECIPES)
    with Workers(recipe) as workers, pytest.raises(UserError, match="needs 198 GPUs but"):
        workers.spawn("nowhere:Thing", Placement(gpus=99.0), ["a", "b"], [(), ()])
