"""The tables of trajectories: what the rollout phase records."""

from typing import Any

import numpy as np
import polars as pl

from rlcore.models.ragged import from_flat
from rlcore.rollout.trajectories import Trajectory, joined
from rlcore.store.tables import polars_schema


def episodes_frame(trajectories: list[Trajectory]) -> pl.DataFrame:
    """Return the Episodes table of ``trajectories``, row for row."""
    return pl.DataFrame(
        {
            "trajectory_id": [one.request.trajectory_id for one in trajectories],
            "turns": [list(one.messages) for one in trajectories],
            "failure": [one.failure or None for one in trajectories],
        },
        schema=polars_schema("episodes"),
    )


def rollouts_frame(trajectories: list[Trajectory], iteration: int) -> pl.DataFrame:
    """Return the Rollouts table of ``trajectories``, row for row."""
    requests = [trajectory.request for trajectory in trajectories]
    last = [trajectory.last for trajectory in trajectories]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    whole = joined(trajectories)
    schema = polars_schema("rollouts")
    columns: dict[str, Any] = {
        "trajectory_id": [request.trajectory_id for request in requests],
        "uid": [request.prompt["uid"] for request in requests],
        "sample": [request.sample for request in requests],
        "iteration": [iteration] * len(requests),
        "prompt_tokens": [len(request.prompt["prompt_ids"]) for request in requests],
        "response": [trajectory.text for trajectory in trajectories],
        "finish_reason": [g.finish_reason.value for g in last],
        "stop_reason": [trajectory.stop_reason.value for trajectory in trajectories],
        "seed": [request.seed for request in requests],
        "weight_version": [g.stamp.version for g in last],
        "weight_digest": [g.stamp.digest for g in last],
    }
    per_token = {
        "token_ids": whole.token_ids,
        "loss_mask": whole.loss_mask,
        "sampler_logprobs": np.minimum(whole.logprobs, 0.0),
    }
    per_turn = {
        "turn_ends": whole.turn_ends,
        "turn_rewards": np.array([turn.reward for turn in turns]),
        "turn_versions": np.array([turn.generation.stamp.version for turn in turns]),
        "valid_actions": np.array([turn.valid for turn in turns]),
    }
    inner = {name: dtype.inner for name, dtype in schema.items() if isinstance(dtype, pl.List)}
    for lengths, lists in ((whole.lengths, per_token), (whole.turns, per_turn)):
        columns |= {n: from_flat(n, values, lengths, inner[n]) for n, values in lists.items()}
    return pl.DataFrame(columns, schema=schema)
