"""What is made again, or continues, is sampled by the engine that sampled it before."""

import logging
from pathlib import Path

import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from rlcore.results.provenance import ENGINE
from rlcore.rl.workers import Workers
from tasks.run_page.tracking import Tracker
from tasks.runtime.stage_keys import Declared
from tasks.runtime.stage_run import PipelineRun, StageRun, sampling

NOWHERE = Path("nowhere")  # a model from scratch is known by its recipe


@pytest.fixture
def first(tmp_path: Path) -> StageRun:
    """A stage run of a recipe for which ``auto`` takes transformers."""
    over = {
        "hardware.rollout.engine": "auto",
        "hardware.device": "cpu",
        "store": str(tmp_path / "store"),
    }
    recipe = load_recipe("quickstart", over, directory=RECIPES)
    log = logging.getLogger(__name__).info
    pipeline = PipelineRun(
        recipe, tmp_path, workers=Workers(recipe, log=log), tracker=Tracker(None, warn=log)
    )
    keys = Declared("rl", "policy").keys(recipe, {})
    return StageRun(pipeline, stage="rl", kind="policy", keys=keys, parents={})


def engine_of(run: StageRun) -> str:
    return run.lineage().metadata[ENGINE]


def finish(run: StageRun, folder: Path) -> None:
    folder.mkdir()
    (folder / "text.txt").write_text(folder.name)
    run.put(directory=folder)


def test_a_result_made_anew_is_drawn_by_the_engine_of_the_one_before(
    first: StageRun, tmp_path: Path
) -> None:
    """``rerun`` is asked whether the same comes out again."""
    assert engine_of(sampling(first, NOWHERE)) == "transformers"
    finish(first.noting({ENGINE: "vllm"}), tmp_path / "first")
    second = first.regenerated(2)
    assert engine_of(sampling(second, NOWHERE, otherwise="transformers")) == "vllm"
    finish(second.noting({ENGINE: "transformers"}), tmp_path / "second")
    assert engine_of(sampling(first.regenerated(3), NOWHERE)) == "transformers"
    assert engine_of(sampling(first.regenerated(2), NOWHERE)) == "vllm"


def test_what_a_run_goes_on_with_counts_before_what_it_makes_anew(
    first: StageRun, tmp_path: Path
) -> None:
    finish(first.noting({ENGINE: "transformers"}), tmp_path / "first")
    assert engine_of(sampling(first.regenerated(2), NOWHERE, recorded="vllm")) == "vllm"
    assert engine_of(sampling(first, NOWHERE, otherwise="vllm")) == "vllm", "a fork"
    assert engine_of(sampling(first, NOWHERE)) == "transformers"
