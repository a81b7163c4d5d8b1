"""Whole runs of their own: with an engine that is not synced, refused, on GSM8K."""

import json
from pathlib import Path

import pytest

from rlcore.models.base import build_base_model
from schemas.model import FromScratch, ModelSection
from tests.flows.small_run import INLINE, run_recipe, run_small, summary_of
from tests.inputs import GSM8K, reads

pytestmark = pytest.mark.timeout(600)


@pytest.mark.slow
def test_unsynced_engine_stops_the_run(prefect_server: str, tmp_path: Path) -> None:
    """An engine that keeps its old weights must not train silently: the commonest bug of the
    field."""
    run = run_small(tmp_path, {**INLINE, "sft.max_steps": 2}, kill_at="skip-sync")
    assert run.returncode != 0
    assert "the engine was not synced after an update" in run.stdout


def test_bad_recipe_ends_before_any_stage(prefect_server: str, tmp_path: Path) -> None:
    run = run_small(tmp_path, {"rl.iteratons": 2})
    assert run.returncode != 0
    assert "did you mean 'iterations'" in run.stdout
    assert not (tmp_path / "runs" / "store").exists()


@pytest.mark.slow
@reads(GSM8K / "train.jsonl")
def test_real_gsm8k_goes_through_all_stages(prefect_server: str, tmp_path: Path) -> None:
    """gsm8k-grpo on the real files, with a small local model in place of the hub's, in bfloat16."""
    model = ModelSection(
        from_scratch=FromScratch(
            hidden_size=64, num_heads=2, num_kv_heads=1, num_layers=1, max_position_embeddings=1024
        ),
        dtype="bfloat16",
    )
    texts = ["How many apples? Ann has 3 and buys 4.", "#### 7", "Let's think step by step"]
    build_base_model(model, tmp_path / "base", texts=texts, seed=0)
    overrides = {
        "model.path": str(tmp_path / "base"),
        "model.max_tokens": 1024,
        "data.sources.0.path": str(GSM8K),
        "data.max_prompt_tokens": 900,
        "data.max_reject_fraction": 0.9,
        "sft.max_steps": 2,
        "sft.batch_size": 4,
        "sft.max_tokens": 1024,
        "rl.iterations": 2,
        "rl.rollout.prompts": 4,
        "rl.rollout.samples": 2,
        "rl.rollout.max_new_tokens": 16,
        "rl.update.optimizer.schedule.warmup_steps": 0,
        "rl.validation.prompts": 4,
        "evaluate.max_prompts": 4,
        "evaluate.samples": 2,
        "evaluate.pass_k": [1, 2],
        "evaluate.max_new_tokens": 16,
        "hardware.device": "cpu",
        "hardware.rollout.kv_cache_gib": 1,
        "tracking.wandb": False,
    }
    run = run_recipe(tmp_path, ["", "gsm8k-grpo", json.dumps(overrides)])
    assert run.returncode == 0, run.stdout[-4000:]
    summary = summary_of(tmp_path)
    assert set(summary["accuracy"]) == {"base", "sft", "rl"}
    assert (Path(summary["export"]) / "config.json").is_file()
