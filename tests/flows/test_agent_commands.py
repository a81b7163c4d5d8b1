"""AlphaApollo's page on RL training: what stands for its commands runs here, with a small model.

Its ``prepare_informal_math`` is a source of kind math, its ``prepare --mode text`` one of kind
environment, and its agent run is what from-verl makes of the command.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from rlcore.models.base import build_base_model
from rlcore.results.queries import query
from rlcore.store.artifacts import ArtifactStore
from rlcore.verl.translate import render, translate
from schemas.model import FromScratch, ModelSection
from tests.flows.small_run import INLINE, run_recipe, summary_of
from tests.rlcore.data.row_files import MATH_ROWS, write
from tests.rlcore.verl.test_episodes import AGENT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
FEW = {
    "evaluate.samples": 1,
    "evaluate.pass_k": [1],
    "hardware.device": "cpu",
    "tracking.wandb": False,
}


def _run(folder: Path, recipe: str, overrides: dict[str, Any]) -> ArtifactStore:
    arguments = ["", recipe, json.dumps({**INLINE, **FEW, **overrides})]
    done = run_recipe(folder, arguments)
    assert done.returncode == 0, done.stdout[-4000:]
    return ArtifactStore(folder / "runs" / "store")


def test_the_agent_run_plays_episodes_on_math(prefect_server: str, tmp_path: Path) -> None:
    """A run that was planned for another framework could only be read here, not trained."""
    (tmp_path / "math").mkdir()
    for split, word in (("train", "What"), ("test", "Tell me what")):
        rows = [
            row | {"problem": row["problem"].replace("What", word).replace("?", f" (no. {n})?")}
            for n in range(8)
            for row in MATH_ROWS
        ]
        write(tmp_path / "math" / f"{split}.jsonl", rows)
    shape = FromScratch(
        hidden_size=64, num_heads=2, num_kv_heads=1, num_layers=1, max_position_embeddings=4096
    )
    model = ModelSection(from_scratch=shape, dtype="float32")
    texts = [f"{row['problem']} {row['solution']}" for row in MATH_ROWS]
    build_base_model(model, tmp_path / "base", texts=texts, seed=0)
    recipe = tmp_path / "agent.yaml"
    recipe.write_text(render(translate(AGENT)), encoding="utf-8")
    overrides = {
        "model.path": str(tmp_path / "base"),
        "data.sources": [{"kind": "math", "path": str(tmp_path / "math")}],
        "data.max_reject_fraction": 0.9,
        "rl.iterations": 2,
        "rl.rollout.max_new_tokens": 16,
        "rl.validation.prompts": 4,
        "evaluate.max_prompts": 4,
        "evaluate.max_new_tokens": 16,
    }
    store = _run(tmp_path, str(recipe), overrides)
    statement = (
        "select iteration, count(*), min(len(turns)) from trajectories group by 1 order by 1"
    )
    of_each = 16 * 8  # prompts, and episodes of each
    assert query(store, statement).rows() == [(1, of_each, 1), (2, of_each, 1)]
    assert Path(summary_of(tmp_path)["export"]).is_dir()


def test_text_environments_bring_as_many_prompts_as_are_asked_for(
    prefect_server: str, tmp_path: Path
) -> None:
    """--train_data_size 16 --val_data_size 128: the sizes are the whole of such a data set."""
    sizes = {"kind": "environment", "train_size": 16, "validation_size": 128, "test_size": 16}
    overrides = {
        "data.sources": [{**sizes, "demonstrations": 256}],
        "sft.max_steps": 4,
        "rl.iterations": 1,
        "rl.rollout.prompts": 4,
        "rl.validation.every": 1,
        "rl.validation.prompts": 8,
        "evaluate.max_prompts": 4,
    }
    store = _run(tmp_path, "text-game-grpo", overrides)
    splits = query(store, "select split, count(*) from prompts group by 1 order by 1").rows()
    assert splits == [("test", 16), ("train", 16), ("validation", 128)]
    assert Path(summary_of(tmp_path)["export"]).is_dir()
