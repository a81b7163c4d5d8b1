"""Classic RLHF at its smallest: PPO trains on a reward model that the flow trained."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rlcore.models.base import build_base_model
from rlcore.models.files import model_directory
from rlcore.results.queries import query
from rlcore.store.artifacts import ArtifactStore
from schemas.model import FromScratch, ModelSection
from tests.flows.small_run import INLINE, SMALL, model_digests, run_recipe, summary_of
from tests.inputs import GSM8K, reads

pytestmark = pytest.mark.timeout(300)
CONFIG = "config.json"
SOLUTIONS = GSM8K / "example_model_solutions.jsonl"
RLHF = {
    **SMALL,
    **INLINE,
    "reward.functions": [
        {"name": "reward_model"},
        {"name": "tests.flows.small_reward:even_length", "weight": 0.0},
    ],
    "reward_model.preferences.prompts": 24,
    "reward_model.preferences.validation_prompts": 12,
    "reward_model.preferences.max_new_tokens": 16,
    "reward_model.batch_prompts": 4,
    "rl.rollout.samples": 1,
    "rl.iterations": 2,
    "rl.critic.init": "reward_model",
}


def run(directory: Path, **other: Any) -> subprocess.CompletedProcess[str]:
    return run_recipe(directory, ["", "quickstart-rlhf", json.dumps(RLHF | other)])


@pytest.mark.slow
def test_its_base_may_be_a_smaller_model_of_the_policys_tokenizer(
    prefect_server: str, tmp_path: Path
) -> None:
    """InstructGPT's is of 6 billion parameters for a policy of 175."""
    base = run(tmp_path, **{"rl.iterations": 1})
    assert base.returncode == 0, base.stdout[-4000:]
    store = ArtifactStore(tmp_path / "runs" / "store")
    (made,) = (store.find("base_model", key) for key in store.keys("base_model"))
    assert made is not None
    made = model_directory(store.directory(made))
    small = _half_as_wide(made, tmp_path / "small")
    over = {"reward_model.base": str(small), "rl.iterations": 1}
    done = run(tmp_path, **over)
    assert done.returncode == 0, done.stdout[-4000:]
    assert f"reward_model.base = '{small}'" not in done.stdout
    cached = summary_of(tmp_path)["cached"]
    assert cached == ["base_model", "prepare_data", "sft"]
    keys = store.keys("reward_model")
    assert len(keys) == 2
    widths = set()
    for key in keys:
        trained = store.find("reward_model", key)
        assert trained is not None
        config = json.loads((model_directory(store.directory(trained)) / CONFIG).read_text())
        widths.add(config["hidden_size"])
    assert widths == {32, 64}
    again = run(tmp_path, **over)
    assert again.returncode == 0, again.stdout[-4000:]
    assert "reward_model" in summary_of(tmp_path)["cached"]
    AutoModelForCausalLM.from_config(_config(small), dtype=torch.float32).save_pretrained(small)
    changed = run(tmp_path, **over)
    assert changed.returncode == 0, changed.stdout[-4000:]
    assert len(store.keys("reward_model")) == 3, "other weights of it are another reward model"


def _config(directory: Path) -> Any:
    return AutoConfig.from_pretrained(directory)


def _half_as_wide(model: Path, target: Path) -> Path:
    """A model of the tokenizer of ``model`` and half its width, with random weights."""
    shutil.copytree(model, target)
    config = _config(model)
    config.update({"hidden_size": config.hidden_size // 2, "num_attention_heads": 1})
    (target / "model.safetensors").unlink()
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(target)
    return target


def _check_brought(tmp_path: Path, store: ArtifactStore) -> None:
    """As reward and as start of the critic of another run it says the same bits."""
    before = model_digests(tmp_path, "policy")
    trained = store.find("reward_model", *store.keys("reward_model"))
    assert trained is not None
    functions = [{"name": "reward_model:mine"}, RLHF["reward.functions"][1]]
    brought = run(
        tmp_path,
        **{
            "reward_model": None,
            "reward_models": {"mine": {"path": str(model_directory(store.directory(trained)))}},
            "reward.functions": functions,
            "rl.critic.init": "reward_model:mine",
        },
    )
    assert brought.returncode == 0, brought.stdout[-4000:]
    assert "reward_model" not in summary_of(tmp_path)["cached"]
    said = query(
        store,
        "select trajectory_id, score, (parts->>'reward_model')::double as model,"
        " (parts->>'reward_model:mine')::double as mine from rewards order by 1",
    )
    models, mine = (said.filter(pl.col(part).is_not_null()) for part in ("model", "mine"))
    assert models["model"].to_list() == mine["mine"].to_list() == mine["score"].to_list()
    after = model_digests(tmp_path, "policy")
    assert len(after) == len(before) + 1
    assert set(after.values()) == set(before.values()), "both runs trained the same bits"


@pytest.mark.slow
def test_a_reward_model_is_trained_judged_used_and_kept(
    prefect_server: str, tmp_path: Path
) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout[-4000:]
    summary = summary_of(tmp_path)
    stages = ["base_model", "prepare_data", "sft", "reward_model", "rl", "evaluate", "export"]
    assert list(summary["seconds"]) == stages
    judged = {row["level"]: row for row in summary["reward_model"]["pair_accuracy"]}
    assert set(judged) == {"correct_over_wrong", "all"}
    assert 0 <= summary["reward_model"]["calibration_error"] <= 0.5
    store = ArtifactStore(tmp_path / "runs" / "store")

    ranked = query(
        store,
        "select split, count(distinct uid) as prompts, min(n) as least, max(n) as most from"
        " (select split, uid, count(*) as n from preferences group by 1, 2) group by 1 order by 1",
    )
    assert ranked.rows()[0][:2] == ("train", 24)
    assert ranked["least"].to_numpy().min() >= 4
    assert ranked["most"].to_numpy().max() <= 9

    # PPO's reward is the model's score; the rule reward of weight 0 is logged only.
    parts = query(
        store,
        "select score, (parts->>'reward_model')::double as model,"
        " parts->>'tests.flows.small_reward:even_length' as judge from rewards",
    )
    assert parts.height == 2 * 4
    assert parts["score"].to_numpy() == pytest.approx(parts["model"].to_numpy(), abs=1e-6)
    assert parts["judge"].null_count() == 0
    # A critic from the policy would return exactly 0 before its first step.
    first = query(store, "select values, loss_mask from trajectories where iteration = 1")
    assert first.height > 0
    for values, mask in first.rows():
        assert [value != 0 for value in values] == mask
    lineage = query(store, "select role from lineage where kind = 'reward_model' order by role")
    assert lineage["role"].to_list() == ["dataset", "policy", "preferences"]

    card = (Path(summary["export"]) / "README.md").read_text()
    assert "reinforcement learning on a trained reward model." in " ".join(card.split())
    assert "| reward\\_model | 1 | a trained model |" in card
    assert "| tests.flows.small\\_reward:even\\_length | 0 | reported, not trained on |" in card
    assert "* held-out pairs ordered rightly: " in card
    assert "| scalar head that scores responses | reward\\_model | " in card
    assert "| ranked responses that the reward model was trained on | preferences | " in card

    again = run(tmp_path)
    assert again.returncode == 0, again.stdout[-4000:]
    assert summary_of(tmp_path)["cached"] == stages
    _check_brought(tmp_path, store)


@pytest.mark.slow
@reads(SOLUTIONS)
def test_real_solutions_train_a_reward_model_in_bfloat16_without_demonstrations(
    prefect_server: str, tmp_path: Path
) -> None:
    """gsm8k-ppo with GSM8K's own model solutions, and a small local model in place of the hub's."""
    model = ModelSection(
        from_scratch=FromScratch(
            hidden_size=64, num_heads=2, num_kv_heads=1, num_layers=1, max_position_embeddings=1024
        ),
        dtype="bfloat16",
    )
    texts = ["How many apples? Ann has 3 and buys 4.", "#### 7", "Let's think step by step"]
    build_base_model(model, tmp_path / "base", texts=texts, seed=0)
    overrides = {
        **INLINE,
        "model.path": str(tmp_path / "base"),
        "model.max_tokens": 1024,
        "data.sources.0.path": str(SOLUTIONS.parent),
        "data.sources.0.limit": 300,
        "data.max_prompt_tokens": 900,
        "data.max_reject_fraction": 0.9,
        "reward_model": {
            "preferences": {"kind": "gsm8k_solutions", "path": str(SOLUTIONS), "limit": 60},
            "batch_prompts": 8,
        },
        "reward.functions": [{"name": "reward_model"}, {"name": "gsm8k", "weight": 0.0}],
        "rl.iterations": 1,
        "rl.rollout.prompts": 2,
        "rl.rollout.max_new_tokens": 8,
        "rl.validation.prompts": 2,
        "evaluate.max_prompts": 2,
        "evaluate.samples": 1,
        "evaluate.pass_k": [1],
        "evaluate.max_new_tokens": 8,
        "hardware.device": "cpu",
        "hardware.learner.micro_batch_tokens": 8192,
        "tracking.wandb": False,
    }
    done = run_recipe(tmp_path, ["", "gsm8k-ppo", json.dumps(overrides)])
    assert done.returncode == 0, done.stdout[-4000:]
    assert "prompts of the preferences are test prompts of the dataset" in done.stdout
    judged = {row["level"]: row for row in summary_of(tmp_path)["reward_model"]["pair_accuracy"]}
    assert judged["correct_over_wrong"]["num_pairs"] > 5
    assert judged["all"]["num_prompts"] > 3
