"""A reward model that a user brings, through the pipeline: its scores, its part in keys, and what
is refused before anything starts."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

from rlcore.plan import preconditions
from rlcore.plan.preconditions import check_classifiers, check_start
from rlcore.recipes.load import load_recipe
from rlcore.store.artifacts import ArtifactStore
from schemas.errors import UserError
from tests.flows.small_run import INLINE, SMALL, model_digests, run_small
from tests.rlcore.rewards.judges.vllm_server import vllm_server
from tests.rlcore.rewards.test_pool_brought import expected, tokenizer

ROOT = Path(__file__).parents[2]


def saved(target: Path, *, seed: int = 0, pad: int = 1) -> Path:
    """Its EOS is 1. Transformers reads a score before the padding at a text's end, vLLM at the last
    token."""
    reader = tokenizer()
    config = LlamaConfig(
        hidden_size=64,  # of two heads: vLLM attends on CPUs to heads of 32 and more
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        vocab_size=len(reader),
        pad_token_id=pad,
    )
    config.num_labels = 1
    torch.manual_seed(seed)
    model = LlamaForSequenceClassification(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(target)
    reader.save_pretrained(target)
    return target


def brings(model: Path | str, weight: float = 0.5) -> dict[str, object]:
    return {
        **INLINE,
        "rl.iterations": 2,
        "reward_models": {"mine": {"path": str(model)}},
        "reward.functions": [
            {"name": "tests.flows.small_reward:digits"},
            {"name": "reward_model:mine", "weight": weight},
        ],
    }


def scored_rollouts(store: ArtifactStore) -> tuple[pl.DataFrame, list[Any]]:
    """Return the rewards of an iteration's responses, and the conversation of each."""
    key = store.keys("rewards")[0]
    ref, drawn = store.find("rewards", key), store.find("rollouts", key)
    assert ref is not None
    assert drawn is not None
    scored = store.table(ref, "rewards")
    rows = store.table(drawn, "rollouts").select("trajectory_id", "uid", "response")
    prompts = pl.concat(
        [
            store.table(found, "prompts")
            for k in store.keys("dataset")
            if (found := store.find("dataset", k))
        ]
    ).select("uid", "prompt")
    asked = rows.join(prompts, on="uid", how="left", maintain_order="left")
    conversations = [
        [*prompt, {"role": "assistant", "content": said}]
        for prompt, said in zip(asked["prompt"].to_list(), asked["response"].to_list(), strict=True)
    ]
    return scored, conversations


def model_scores(scored: pl.DataFrame) -> list[float]:
    return [json.loads(text)["reward_model:mine"] for text in scored["parts"]]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_scores_rollouts_and_other_weights_of_it_are_another_rl(
    prefect_server: str, tmp_path: Path
) -> None:
    model = saved(tmp_path / "reward-model")
    run = run_small(tmp_path / "run", brings(model))
    assert run.returncode == 0, run.stdout[-4000:]
    store = ArtifactStore(tmp_path / "run" / "runs" / "store")
    scored, conversations = scored_rollouts(store)
    assert model_scores(scored) == pytest.approx(expected(model, conversations), abs=1e-5)
    parts = [json.loads(text) for text in scored["parts"]]
    function = "tests.flows.small_reward:digits"
    sums = [part[function] + 0.5 * part["reward_model:mine"] for part in parts]
    assert scored["score"].to_list() == pytest.approx(sums)
    before = model_digests(tmp_path / "run", "policy")
    saved(model, seed=1)
    run = run_small(tmp_path / "run", brings(model))
    assert run.returncode == 0, run.stdout[-4000:]
    assert set(before) < set(model_digests(tmp_path / "run", "policy"))
    assert len(store.keys("rewards")) == 4, "RL began again with the other model"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_served_by_vllm_it_scores_as_transformers_does(prefect_server: str, tmp_path: Path) -> None:
    """It knows another tokenizer and template than the policy, which vLLM has from its files."""
    model, store = saved(tmp_path / "rm", pad=0), tmp_path / "run" / "runs" / "store"
    with vllm_server(model, tmp_path / "log.txt", "--runner", "pooling") as (address, process):
        given = {**brings(model), "reward_models": {"mine": {"url": address, "version": "1"}}}
        run = run_small(tmp_path / "run", given)
        assert run.returncode == 0, run.stdout[-4000:]
        scored, asked = scored_rollouts(ArtifactStore(store))
        found = model_scores(scored)
        assert found == pytest.approx(expected(model, asked), abs=1e-4)
        assert max(found) - min(found) > 0.01, "not one score for all"
        assert not all(0 < score < 1 for score in found)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    run = run_small(tmp_path / "run", {**given, "rl.iterations": 3})
    assert run.returncode != 0
    assert f"reward_models.mine.url = '{address}' gives no score: no connection" in run.stdout


def test_a_wrong_one_is_refused_before_anything_starts(tmp_path: Path) -> None:
    given = {**SMALL, **brings(tmp_path / "nowhere")}
    recipe = load_recipe("quickstart", given, directory=ROOT / "flows" / "recipes")
    with pytest.raises(
        UserError, match=r"reward_models.mine.path = '.*nowhere' is not a directory"
    ):
        check_start(recipe)
    short = saved(tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8}))
    recipe = load_recipe(
        "quickstart", {**given, **brings(short)}, directory=ROOT / "flows" / "recipes"
    )
    with pytest.raises(UserError, match="reads 8 tokens"):
        check_start(recipe)
    assert AutoTokenizer.from_pretrained(short).chat_template


def test_one_of_the_hub_is_looked_at_once_the_data_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the start, where nothing is fetched, and not after all of SFT."""
    short = saved(tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8}))
    given = {**SMALL, **brings("owner/short")}
    recipe = load_recipe("quickstart", given, directory=ROOT / "flows" / "recipes")
    monkeypatch.setattr(preconditions, "located", lambda name, model: short)
    check_classifiers(recipe, 16)
    with pytest.raises(UserError, match="reads 8 tokens"):
        check_classifiers(recipe, 16, fetch=True)
