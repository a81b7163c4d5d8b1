"""The recipe of verl's single-GPU run, on two cores: its algorithm and data, a small model."""

import json
from pathlib import Path

import pytest

from rlcore.models.base import build_base_model
from rlcore.results.queries import query
from rlcore.store.artifacts import ArtifactStore
from schemas.model import FromScratch, ModelSection
from tests.flows.small_run import INLINE, run_recipe
from tests.inputs import GSM8K, reads


@pytest.mark.slow
@pytest.mark.timeout(400)
@reads(GSM8K)
def test_five_iterations_of_ppo_on_gsm8k_without_vllm_and_ray(
    prefect_server: str, tmp_path: Path
) -> None:
    """64 prompts an iteration in mini-batches of 32, KL in the reward, actor, critic, reference."""
    shape = FromScratch(
        hidden_size=64, num_heads=2, num_kv_heads=1, num_layers=1, max_position_embeddings=1024
    )
    texts = ["How many apples? Ann has 3 and buys 4.", "#### 7", "Let's think step by step"]
    model = ModelSection(from_scratch=shape, dtype="float32")
    build_base_model(model, tmp_path / "base", texts=texts, seed=0)
    overrides = {
        **INLINE,
        "model.path": str(tmp_path / "base"),
        "model.max_tokens": 1024,
        "data.sources.0.path": str(GSM8K),
        "data.sources.0.limit": 600,
        "data.max_prompt_tokens": 900,
        "data.max_reject_fraction": 0.9,
        "rl.iterations": 5,
        "rl.rollout.max_new_tokens": 24,
        "rl.validation.prompts": 4,
        "evaluate.max_prompts": 4,
        "evaluate.samples": 1,
        "evaluate.pass_k": [1],
        "evaluate.max_new_tokens": 8,
        "hardware.device": "cpu",
        "hardware.learner.micro_batch_tokens": 8192,
        "tracking.wandb": False,
    }
    done = run_recipe(tmp_path, ["", "gsm8k-ppo", json.dumps(overrides)])
    assert done.returncode == 0, done.stdout[-4000:]
    store = ArtifactStore(tmp_path / "runs" / "store")
    rows = query(
        store,
        "select step, name, value from metrics where stage = 'rl' and name in"
        " ('actor/optimizer_steps', 'critic/optimizer_steps', 'actor/lr', 'critic/lr')",
    )
    by_name = {name: frame.sort("step") for (name,), frame in rows.group_by("name")}
    for role, lr in (("actor", 1e-6), ("critic", 1e-5)):
        assert by_name[f"{role}/optimizer_steps"]["value"].to_list() == [2.0] * 5
        assert by_name[f"{role}/lr"]["value"].to_list() == pytest.approx([lr] * 5)
    answers = query(store, "select iteration, count(*) from rollouts group by 1 order by 1").rows()
    assert answers == [(iteration, 64) for iteration in range(1, 6)]
