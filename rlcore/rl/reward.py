"""The reward phase: rollouts in, one score per trajectory out."""

import json
from dataclasses import replace

import polars as pl

from rlcore.rewards.types import Reward, RewardRow, Scorers, prompt_text


def score_rollouts(rollouts: pl.DataFrame, prompts: pl.DataFrame, rewards: Scorers) -> pl.DataFrame:
    """Return the Rewards table of ``rollouts``; ``prompts`` supplies ground truth and source by
    uid.

    A trajectory that the engine aborted says nothing about the policy: outcome "aborted", no score.
    """
    columns = ["uid", "data_source", "prompt", "ground_truth", "extra_info"]
    joined = rollouts.select(
        "trajectory_id", "uid", "response", "finish_reason", "prompt_ids", "token_ids"
    ).join(prompts.select(columns), on="uid", how="left", maintain_order="left", validate="m:1")
    rows = [
        RewardRow(
            trajectory_id=row["trajectory_id"],
            data_source=row["data_source"],
            response=row["response"],
            ground_truth=row["ground_truth"],
            extra_info=json.loads(row["extra_info"]),
            finish_reason=row["finish_reason"],
            num_tokens=len(row["token_ids"]),
            prompt=prompt_text(row["prompt"]),
            token_ids=[*row["prompt_ids"], *row["token_ids"]],
        )
        for row in joined.iter_rows(named=True)
    ]
    finished = [row for row in rows if row.finish_reason != "abort" and row.num_tokens]
    scored = {reward.trajectory_id: reward for reward in rewards.score(finished)}
    aborted = Reward("", "aborted", None, detail="the engine aborted the response")
    return rewards_frame(
        [
            scored.get(row.trajectory_id, replace(aborted, trajectory_id=row.trajectory_id))
            for row in rows
        ]
    )


def rewards_frame(rewards: list[Reward]) -> pl.DataFrame:
    """Return scored rows in the Rewards contract."""
    return pl.DataFrame(
        {
            "trajectory_id": [r.trajectory_id for r in rewards],
            "outcome": [r.outcome for r in rewards],
            "score": pl.Series([r.score for r in rewards], dtype=pl.Float64),
            "correct": pl.Series([r.correct for r in rewards], dtype=pl.Boolean),
            "parts": [json.dumps(r.parts, sort_keys=True) for r in rewards],
            "detail": [r.detail for r in rewards],
            "seconds": pl.Series([r.seconds for r in rewards], dtype=pl.Float64),
        }
    )
