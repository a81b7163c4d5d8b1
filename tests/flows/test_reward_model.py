"""Classic RLHF at its smallest: a reward model trained by the flow is what PPO then learns from."""

import json
import subprocess
from pathlib import Path

import pytest

from rlcore.queries import query
from rlcore.store import ArtifactStore
from tests.flows.small_run import INLINE, SMALL, run_recipe, summary_of

pytestmark = pytest.mark.timeout(300)
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
}


def run(directory: Path) -> subprocess.CompletedProcess[str]:
    return run_recipe(directory, ["", "quickstart-rlhf", json.dumps(RLHF)], timeout_s=240)


def test_a_reward_model_is_trained_judged_used_and_kept(
    prefect_server: str, tmp_path: Path
) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout[-4000:]
    summary = summary_of(tmp_path)
    stages = ["prepare_data", "sft", "reward_model", "rl", "evaluate", "export"]
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

    # What PPO was rewarded with is the model's score; the judge of weight 0 is told beside it.
    parts = query(
        store,
        "select score, (parts->>'reward_model')::double as model,"
        " parts->>'tests.flows.small_reward:even_length' as judge from rewards",
    )
    assert parts.height == 2 * 4
    assert parts["score"].to_numpy() == pytest.approx(parts["model"].to_numpy(), abs=1e-6)
    assert parts["judge"].null_count() == 0
    lineage = query(store, "select role from lineage where kind = 'reward_model' order by role")
    assert lineage["role"].to_list() == ["dataset", "policy", "preferences"]

    again = run(tmp_path)
    assert again.returncode == 0, again.stdout[-4000:]
    assert summary_of(tmp_path)["cached"] == stages
