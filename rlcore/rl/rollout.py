"""The rollout phase: prompts in, recorded trajectories out."""

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from rlcore.algorithms.seeds import stream_seed
from rlcore.engines.pool import EnginePool
from rlcore.engines.types import Sampling
from rlcore.models.ragged import from_flat
from rlcore.rollout.episodes import Episodes, collect, in_order
from rlcore.rollout.trajectories import Request, Trajectory, joined
from rlcore.store.tables import polars_schema
from schemas.rollout import RolloutSection


def sample_rollouts(
    prompts: pl.DataFrame,
    engines: EnginePool,
    section: RolloutSection,
    *,
    tokenizer: Any,
    stop_ids: tuple[int, ...],
    iteration: int,
    seed: int,
    greedy: bool = False,
    done: Callable[[Trajectory], None] = lambda trajectory: None,
    episodes: Episodes | None = None,
) -> dict[str, pl.DataFrame]:
    """Sample ``section.samples`` trajectories per prompt; return table ``rollouts``, a row each.

    With ``episodes``, which the policy then plays, also the table ``episodes``.

    ``stop_ids``: what ends a turn (``models.stop_tokens``), besides ``section.stop``. The seed of a
    trajectory is a function of (recipe seed, iteration, uid, sample), so it can be
    drawn again alone. ``greedy``: one trajectory per prompt at temperature 0 instead, the baseline
    of ReMax (arXiv 2310.10505). ``done`` is given each trajectory as it ends, in no fixed order.
    """
    requests = [
        Request(
            f"{iteration:06d}-{prompt['uid']}-{'greedy' if greedy else f'{sample:02d}'}",
            prompt,
            sample,
            stream_seed(seed, "rollout", iteration, prompt["uid"], sample),
        )
        for prompt in prompts.iter_rows(named=True)
        for sample in range(1 if greedy else section.samples)
    ]
    sampling = Sampling(
        temperature=0.0 if greedy else section.temperature,
        top_p=section.top_p,
        top_k=section.top_k,
        max_new_tokens=section.max_new_tokens,
        stop_token_ids=stop_ids,
        stop=section.stop,
    )
    sampled = []
    for trajectory in collect(
        requests, sampling, engines, tokenizer, episodes, schedule=section.schedule
    ):
        done(trajectory)
        sampled.append(trajectory)
    trajectories = in_order(requests, sampled)
    tables = {"rollouts": rollouts_frame(trajectories, iteration)}
    if episodes is not None:
        tables["episodes"] = episodes_frame(trajectories)
    return tables


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
