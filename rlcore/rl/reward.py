"""The reward phase: rollouts in, one score per trajectory out."""

import json
from dataclasses import asdict

import numpy as np
import polars as pl

from rlcore.models.ragged import to_arrays
from rlcore.rewards.types import Reward, RewardRow, Scorers, score_finished
from rlcore.rl.batch import beside


def score_rollouts(
    rollouts: pl.DataFrame,
    prompts: pl.DataFrame,
    rewards: Scorers,
    episodes: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Return the Rewards table of ``rollouts``; ``prompts`` supplies ground truth and source by
    uid, ``episodes`` what was said in an environment. What the engine aborted has outcome "aborted"
    and no score, what the environment failed "error"."""
    columns = ["uid", "data_source", "prompt", "reward_style", "ground_truth", "extra_info"]
    prompt_of = {row["uid"]: row for row in prompts.select(columns).iter_rows(named=True)}
    sampled = ["trajectory_id", "uid", "response", "finish_reason", "prompt_tokens"]
    if episodes is None:
        joined = rollouts.select(sampled)
    else:
        joined = beside(rollouts.select(*sampled, "turn_rewards"), episodes)
    token_ids, masks = to_arrays(rollouts["token_ids"]), to_arrays(rollouts["loss_mask"])
    rows = [
        RewardRow.of_prompt(
            prompt_of[row["uid"]],
            trajectory_id=row["trajectory_id"],
            response=row["response"],
            finish_reason=row["finish_reason"],
            num_tokens=int(mask.sum()),
            turns=tuple(row.get("turns") or ()),
            turn_rewards=row.get("turn_rewards") or (),
            failure=row.get("failure") or "",
            token_ids=ids[mask | (np.arange(len(ids)) < row["prompt_tokens"])].tolist(),
        )
        for row, ids, mask in zip(joined.iter_rows(named=True), token_ids, masks, strict=True)
    ]
    return rewards_frame(score_finished(rows, rewards.score))


def rewards_frame(rewards: list[Reward]) -> pl.DataFrame:
    """Return scored rows in the Rewards contract."""
    return pl.DataFrame(
        {
            "trajectory_id": [r.trajectory_id for r in rewards],
            "outcome": pl.Series([r.outcome for r in rewards], dtype=pl.String),
            "score": pl.Series([r.score for r in rewards], dtype=pl.Float64),
            "correct": pl.Series([r.correct for r in rewards], dtype=pl.Boolean),
            "counts": [r.counts for r in rewards],
            "parts": [json.dumps(r.parts, sort_keys=True) for r in rewards],
            "detail": [r.detail for r in rewards],
            "failures": [
                json.dumps({name: asdict(failure) for name, failure in r.failures.items()})
                for r in rewards
            ],
            "seconds": pl.Series([r.seconds for r in rewards], dtype=pl.Float64),
            "verdicts": pl.Series([r.verdicts_json for r in rewards], dtype=pl.String),
        }
    )
