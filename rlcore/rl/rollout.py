"""The rollout phase: prompts in, recorded trajectories out."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import polars as pl

from rlcore.algorithms.seeds import stream_seed
from rlcore.engines.pool import EnginePool
from rlcore.engines.types import Sampling
from rlcore.models.ragged import from_flat
from rlcore.rollout.episodes import Episodes, collect, in_order
from rlcore.rollout.trajectories import Request, Trajectory, joined
from schemas.rollout import RolloutSection
from schemas.table_list import MESSAGES


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
    sampled = collect(requests, sampling, engines, tokenizer, episodes, schedule=section.schedule)
    trajectories = in_order(requests, _handed_over(sampled, done))
    tables = {"rollouts": rollouts_frame(trajectories, iteration)}
    if episodes is not None:
        tables["episodes"] = episodes_frame(trajectories)
    return tables


def greedy_tables(
    sampled: dict[str, pl.DataFrame], greedy: dict[str, pl.DataFrame]
) -> dict[str, pl.DataFrame]:
    """Return what the greedy answers add to the tables ``sampled``: ``baselines``, and their
    episodes behind the others."""
    tables = {"baselines": greedy["rollouts"]}
    if "episodes" in greedy:
        tables["episodes"] = pl.concat([sampled["episodes"], greedy["episodes"]])
    return tables


def _handed_over(
    trajectories: Iterator[Trajectory], done: Callable[[Trajectory], None]
) -> Iterator[Trajectory]:
    for trajectory in trajectories:
        done(trajectory)
        yield trajectory


def episodes_frame(trajectories: list[Trajectory]) -> pl.DataFrame:
    """Return the Episodes table of ``trajectories``, row for row."""
    return pl.DataFrame(
        {
            "trajectory_id": [one.request.trajectory_id for one in trajectories],
            "turns": pl.Series([list(one.messages) for one in trajectories], dtype=MESSAGES),
            "failure": pl.Series([one.failure or None for one in trajectories], dtype=pl.String),
        }
    )


def rollouts_frame(trajectories: list[Trajectory], iteration: int) -> pl.DataFrame:
    """Return the Rollouts table of ``trajectories``, row for row."""
    requests = [trajectory.request for trajectory in trajectories]
    last = [trajectory.last for trajectory in trajectories]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    whole = joined(trajectories)

    def per_token(name: str, values: np.ndarray, dtype: type[pl.DataType]) -> pl.Series:
        return from_flat(name, values, whole.lengths, dtype)

    def per_turn(name: str, values: Iterable[Any], dtype: type[pl.DataType]) -> pl.Series:
        return from_flat(name, np.array([*values]), whole.turns, dtype)

    return pl.DataFrame(
        {
            "trajectory_id": [request.trajectory_id for request in requests],
            "uid": [request.prompt["uid"] for request in requests],
            "sample": pl.Series([request.sample for request in requests], dtype=pl.Int32),
            "iteration": pl.Series([iteration] * len(requests), dtype=pl.Int32),
            "token_ids": per_token("token_ids", whole.token_ids, pl.Int32),
            "prompt_tokens": pl.Series(
                [len(request.prompt["prompt_ids"]) for request in requests], dtype=pl.Int32
            ),
            "loss_mask": per_token("loss_mask", whole.loss_mask, pl.Boolean),
            "sampler_logprobs": per_token(
                "sampler_logprobs", np.minimum(whole.logprobs, 0.0), pl.Float32
            ),
            "response": [trajectory.text for trajectory in trajectories],
            "finish_reason": [g.finish_reason.value for g in last],
            "stop_reason": [trajectory.stop_reason.value for trajectory in trajectories],
            "turn_ends": per_turn("turn_ends", whole.turn_ends, pl.Int32),
            "turn_rewards": per_turn("turn_rewards", (turn.reward for turn in turns), pl.Float64),
            "turn_versions": per_turn(
                "turn_versions", (turn.generation.stamp.version for turn in turns), pl.Int64
            ),
            "valid_actions": per_turn("valid_actions", (turn.valid for turn in turns), pl.Boolean),
            "seed": pl.Series([request.seed for request in requests], dtype=pl.Int64),
            "weight_version": pl.Series([g.stamp.version for g in last], dtype=pl.Int64),
            "weight_digest": [g.stamp.digest for g in last],
        }
    )
