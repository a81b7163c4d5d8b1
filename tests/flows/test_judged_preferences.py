"""A run without a verifier: a judge on loopback ranks what the policy samples, and is paid once."""

import json
import subprocess
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rlcore.store.artifacts import ArtifactStore
from tests.flows.small_run import INLINE, SMALL, run_recipe
from tests.rlcore.rewards.judges.server import JudgeServer, judge_server, prefers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
K = 3


def digits(text: str) -> float:
    return sum(character.isdigit() for character in text)


def overrides(server: JudgeServer) -> dict[str, Any]:
    taste = {
        "url": server.url,
        "model": "judge",
        "template": "{prompt}\n{response_a}\nor\n{response_b}",
        "max_calls": 500,
        "limits": {"retries": 0},
    }
    return {
        **SMALL,
        **INLINE,
        "reward.functions": [{"name": "reward_model"}],
        "judges.taste": taste,
        "reward_model.preferences": {
            "kind": "samples",
            "ranked_by": "judge:taste",
            "prompts": 16,
            "validation_prompts": 8,
            "min_responses": K,
            "max_responses": K,
            "max_new_tokens": 16,
        },
        "reward_model.batch_prompts": 4,
        "rl.rollout.samples": 1,
        "rl.iterations": 1,
        "rl.critic.init": "reward_model",
        "evaluate.win_rate": {"judge": "taste", "against": "base"},
    }


def run(directory: Path, given: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return run_recipe(directory, ["", "quickstart-rlhf", json.dumps(given)])


def table(directory: Path, kind: str, name: str) -> pl.DataFrame:
    store = ArtifactStore(directory / "runs" / "store")
    (key,) = store.keys(kind)
    ref = store.find(kind, key)
    assert ref is not None
    return store.table(ref, name)


def test_a_judge_ranks_what_is_sampled_and_a_rerun_asks_nothing(
    prefect_server: str, tmp_path: Path
) -> None:
    with judge_server(prefers(digits)) as server:
        given = overrides(server)
        done = run(tmp_path, given)
        assert done.returncode == 0, done.stdout[-4000:]
        ranked = table(tmp_path, "preferences", "preferences")
        assert ranked["level"].null_count() == ranked.height == 24 * K
        for _, group in ranked.group_by("uid"):
            worth = [digits(text) for text in group["response"]]
            order = sorted(set(worth), reverse=True)
            assert group["rank"].to_list() == [1 + order.index(value) for value in worth]
        calls, pairs = len(server.requests), table(tmp_path, "evaluation", "win_pairs")
        read = 2 * pairs["asked"].sum()
        assert 24 < calls - read <= 24 * K * (K - 1)
        assert set(pairs["checkpoint"]) == {"sft", "rl"}
        results = table(tmp_path, "evaluation", "eval_results").filter(metric="win_rate")
        whole = results.filter(pl.col("subset") == "all")
        for name, value in whole.select("checkpoint", "value").rows():
            mine = pairs.filter(checkpoint=name)
            apart = [digits(a) - digits(b) for a, b in mine.select("answer", "other").rows()]
            won = sum(0.5 if not each else float(each > 0) for each in apart) / len(apart)
            assert value == pytest.approx(won)
        (report,) = (tmp_path / "runs" / "reports").glob("*/index.html")
        assert "Answers that a judge compared" in report.read_text()
        changed = {**given, "reward_model.preferences": {**given["reward_model.preferences"]}}
        changed["reward_model.preferences"]["validation_prompts"] = 7
        again = run(tmp_path, changed)
        assert again.returncode == 0, again.stdout[-4000:]
        assert len(server.requests) == calls
