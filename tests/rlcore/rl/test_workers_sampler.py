"""Which engine the workers of a run take, and that they take one."""

from pathlib import Path
from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.engines.pool import load_model_directory
from rlcore.models.weight_digest import UNVERIFIED
from rlcore.recipes.load import load_recipe
from rlcore.rl.workers import Workers
from schemas.recipe import Recipe
from tests.flows.small_run import SMALL
from tests.rlcore.engines.conftest import tiny_model

NOWHERE = Path("nowhere")  # a model from scratch is known by its recipe
OTHER = "tests.rlcore.engines.forty_lines:SmallEngine"
AUTO = {"hardware.rollout.engine": "auto", "hardware.device": "cpu"}
LARGE = {"model.from_scratch.hidden_size": 1024, "model.from_scratch.num_layers": 8}


def recipe(*overrides: dict[str, Any]) -> Recipe:
    changes = {key: value for each in overrides for key, value in each.items()}
    return load_recipe("quickstart", changes, directory=RECIPES)


def test_the_rule_is_asked_once_and_told_once() -> None:
    said: list[str] = []
    workers = Workers(recipe(AUTO, LARGE), log=said.append)
    assert workers.choose_engine(NOWHERE) == "vllm"
    said.clear()
    workers.recipe = recipe(AUTO)
    assert [workers.choose_engine(NOWHERE) for _ in range(2)] == ["transformers"] * 2
    (line,) = said
    assert line.startswith("rollout engine: transformers (auto: 361,600 parameters are fewer than")
    assert workers.choose_engine(NOWHERE, "vllm") == "vllm"
    assert said[1:] == ["rollout engine: vllm (auto: what this run has sampled so far is by it)"]


def test_an_engine_that_the_recipe_names_is_not_told() -> None:
    said: list[str] = []
    named = recipe({"hardware.rollout.engine": "transformers", "hardware.device": "cuda"})
    workers = Workers(named, log=said.append)
    assert workers.choose_engine(NOWHERE, "vllm") == "transformers"
    assert said == []


@pytest.mark.timeout(60)
def test_engines_of_another_class_end(tmp_path: Path) -> None:
    """Kept beside the new ones, they would hold memory and be asked for the old draws."""
    tiny_model(0, tied=True).save_pretrained(tmp_path)
    own = {"hardware.cluster": "in_process", "hardware.rollout.engines": 1, **AUTO}
    said: list[str] = []
    with Workers(recipe(SMALL, own), log=said.append) as workers:
        first = workers.engines(tmp_path)
        assert said[0].startswith("rollout engine: transformers (auto: vLLM cannot share a process")
        assert workers.choose_engine(tmp_path) == "transformers"
        assert workers.engines(tmp_path) is first
        workers.recipe = recipe(SMALL, own, {"hardware.rollout.engine": OTHER})
        assert workers.choose_engine(tmp_path) == OTHER
        second = workers.engines(tmp_path)
        assert second is not first
        load_model_directory(second, tmp_path)
        assert second.stamp() != UNVERIFIED
