"""The workers of a run: all of a kind or none, and a learner that is released holds nothing."""

from pathlib import Path

import pytest

from flows.paths import RECIPES
from rlcore.cluster.in_process import InProcessWorker
from rlcore.cluster.types import Placement
from rlcore.engines.pool import EnginePool
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


def test_engines_that_sleep_rest_where_a_learner_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reward model's learner is built after its responses were sampled."""
    rested: list[EnginePool] = []
    monkeypatch.setattr(EnginePool, "rest", lambda pool: rested.append(pool))
    write_tiny_model(tmp_path)
    sleeps = {"hardware.rollout.sleep": True, "hardware.rollout.engine": "auto"}
    recipe = load_recipe("quickstart", {**SMALL, **INLINE, **sleeps}, directory=RECIPES)
    with Workers(recipe) as workers:
        workers.learner(tmp_path, None, name="reference")
        engines = workers.engines(tmp_path)
        assert rested == []
        workers.learner(tmp_path, None, name="reward-model-learner")
        assert rested == [engines]


@pytest.mark.parametrize(("gpus", "batches"), [(0.3, [[0], [1]]), (1.0, [[0, 1]])])
def test_engines_that_share_a_gpu_start_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpus: float, batches: list[list[int]]
) -> None:
    """vLLM counts what others take meanwhile as its own."""
    spawned: list[list[int]] = []

    class Engine:
        def stamp(self) -> None:
            return None

    def spawn(self: Workers, *arguments: object) -> list[InProcessWorker]:
        names: list[str] = arguments[2]  # pyright: ignore[reportAssignmentType]
        spawned.append([int(name.rpartition("-")[2]) for name in names])
        return [InProcessWorker.of(name, Engine()) for name in names]

    monkeypatch.setattr(Workers, "spawn", spawn)
    changes = {"hardware.rollout.gpus_per_engine": gpus, "hardware.rollout.engines": 2}
    asked = {"hardware.device": "cuda", "hardware.cluster": "ray"}
    said: list[str] = []
    recipe = load_recipe("quickstart", SMALL | changes | asked, directory=RECIPES)
    Workers(recipe, log=said.append).engines(tmp_path)
    assert spawned == batches
    assert [line.partition(" is ready")[0] for line in said[-2:]] == [
        "rollout engine 1 of 2",
        "rollout engine 2 of 2",
    ]
