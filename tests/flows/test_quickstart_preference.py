"""The recipe ``quickstart-preference``: a judge's taste is learnt, by RL, DPO and KTO alike.

The judge is a server on loopback; what it likes is known to it and to these tests alone.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.flows.small_run import INLINE, run_recipe
from tests.flows.test_judged_preferences import table
from tests.rlcore.rewards.judges.server import judge_server
from tests.taste import pleases, taste

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
SEEDS = (0, 1, 2)
RECIPE = "quickstart-preference"
ALONE = {**INLINE, "tracking.wandb": False}
# At the presets' learning rates a model of this size learns nothing; without the NLL of the better
# response DPO makes both less likely, and the form of an answer goes.
# A fifth of the responses is desirable: without their weight KTO makes every form unlikely.
ALGORITHMS = {"dpo": {"epochs": 2, "rpo_alpha": 1.0}, "kto": {"epochs": 2, "desirable_weight": 4}}
OFFLINE = {
    "reward.functions": [{"name": "arithmetic"}],
    "reward_model": None,
    "rl.enabled": False,
    "evaluate.checkpoints": ["sft", "preference"],
    "evaluate.win_rate": None,  # asks no judge
    "judges": {},
}


def run(directory: Path, **overrides: Any) -> None:
    """``data__sources=[...]`` overrides data.sources."""
    given = {name.replace("__", "."): value for name, value in overrides.items()}
    done = run_recipe(directory, ["", RECIPE, json.dumps({**ALONE, **given})])
    assert done.returncode == 0, done.stdout[-4000:]


def won(directory: Path, checkpoint: str) -> float:
    """Return the share of prompts at which the greedy answer of ``checkpoint`` pleases more than
    that of SFT, an equal one counted half: by the taste, whatever the judge said of it."""
    answers = table(directory, "evaluation", "completions").filter(mode="greedy")
    mine, sft = (
        answers.filter(checkpoint=name).select("uid", "response") for name in (checkpoint, "sft")
    )
    gaps = [
        pleases(ours) - pleases(theirs) for _, ours, theirs in mine.join(sft, on="uid").iter_rows()
    ]
    return float(np.mean(np.sign(gaps)) / 2 + 0.5)


def ranked(directory: Path) -> pl.DataFrame:
    """Return the table ``preferences`` with the messages of each row's prompt."""
    prompts = table(directory, "dataset", "prompts").select("uid", "prompt")
    return table(directory, "preferences", "preferences").join(
        prompts, on="uid", maintain_order="left"
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.2])
def test_a_taste_is_learnt_from_comparisons(
    noise: float, seed: int, prefect_server: str, tmp_path: Path
) -> None:
    with judge_server(taste(noise)) as server:
        run(tmp_path, seed=seed, judges__taste__url=server.url)
    samples = ranked(tmp_path)
    liked = [float(pleases(response)) for response in samples["response"]]
    lengths = (samples["token_ids"].list.len() - samples["prompt_tokens"]).to_numpy()
    assert abs(np.corrcoef(liked, lengths)[0, 1]) < 0.1
    (accuracy,) = table(tmp_path, "reward_model", "pair_accuracy").filter(level="all")["accuracy"]
    assert accuracy >= 1 - noise - (0.05 if noise else 0.1)
    assert won(tmp_path, "rl") >= 0.8
    if noise or seed:
        return
    groups = samples.group_by("uid", maintain_order=True)
    columns = groups.agg(pl.col("prompt").first(), responses="response", ranks="rank")
    columns.drop("uid").write_ndjson(tmp_path / "pairs.jsonl")
    data = {"kind": "file", "path": str(tmp_path / "pairs.jsonl"), "data_source": "taste"}
    common = {"data": data, "max_tokens": 128, "batch_size": 16}
    common["optimizer"] = {"lr": 3e-4, "betas": [0.9, 0.99]}
    for algorithm, settings in ALGORITHMS.items():
        section = {"algorithm": algorithm, **common, **settings}
        run(tmp_path / algorithm, **OFFLINE, preference=section)
        assert won(tmp_path / algorithm, "preference") >= 0.75
