"""Greedy validation: the figure by which ``rl/state.py`` chooses a checkpoint and ends RL early."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from rlcore.algorithms.seeds import stream_seed
from rlcore.engines.pool import EnginePool
from rlcore.engines.types import Sampling
from rlcore.models.ragged import mean_of
from rlcore.rewards.types import Scorers
from rlcore.rewards.unscored_rows import RewardFailureError, check_unscored
from rlcore.rl.metrics import failure_metrics
from rlcore.rl.prompts import PromptRows
from rlcore.rl.reward import rewards_frame
from rlcore.rollout.episodes import Episodes, collect, in_order, score
from rlcore.rollout.trajectories import Request, Trajectory
from schemas.outcomes import Outcome
from schemas.rl import RewardSection
from schemas.rollout import RolloutSection


@dataclass(frozen=True, slots=True)
class Validation:
    """Answers ``prompts`` greedily, and scores the answers.

    ``stop_ids``: what ends a turn, besides what ``rollout`` says. ``section``: how many may go
    unscored.
    """

    prompts: pl.DataFrame
    engines: EnginePool
    rewards: Scorers
    tokenizer: Any
    stop_ids: tuple[int, ...]
    rollout: RolloutSection
    section: RewardSection
    episodes: Episodes | None = None

    def run(
        self, record: Callable[[pl.DataFrame, pl.DataFrame], None] = lambda scored, answers: None
    ) -> tuple[float, dict[str, float]]:
        """Return the figure that chooses checkpoints, and the metrics.

        The figure is the accuracy by the verdicts of functions that count, over the rows they
        judged; the mean score over scored rows where they give no verdict: what is reported but not
        trained on must not choose. A row without a score (aborted, error, timeout) is in neither.
        Without prompts it is 0: policies do not differ, and the last is the best.

        Metrics: ``val/score``, ``val/accuracy`` over all rows with a verdict and
        ``val/judged_rows``, their number, the shares of failures, ``val/aborted_ratio``, and verl's
        ``val-core/<source>/...`` of the figure.
        ``record`` gets the tables ``validation_rewards`` and ``validation_answers``. Raises
        RewardFailureError when ``section`` allows fewer failures, or no row has a score.
        """
        if not self.prompts.height:
            return 0.0, {}
        requests = [
            Request(prompt["uid"], prompt, sample=0, seed=0)
            for prompt in self.prompts.iter_rows(named=True)
        ]
        sampling = Sampling(
            temperature=0.0,
            max_new_tokens=self.rollout.max_new_tokens,
            stop_token_ids=self.stop_ids,
            stop=self.rollout.stop,
        )
        trajectories = collect(requests, sampling, self.engines, self.tokenizer, self.episodes)
        answered = in_order(requests, trajectories)
        scored = rewards_frame(score(answered, self.rewards.score))
        outcomes = scored.select("outcome", "detail").rows()
        check_unscored(outcomes, self.section, rows="validation answers")
        record(scored, _answers_frame(answered))
        if scored["score"].null_count() == scored.height:
            raise RewardFailureError(
                f"none of the {scored.height} validation answers has a score, so no checkpoint can"
                f" be chosen; the first is {scored['outcome'][0]}: {scored['detail'][0][:200]}"
            )
        return _figures(scored.with_columns(self.prompts["data_source"]))


def validation_prompts(prompts: PromptRows, count: int, seed: int) -> pl.DataFrame:
    """Return ``count`` validation prompts, drawn by (seed, uid): of every source its share."""
    rows = prompts.of_split("validation")
    order = [stream_seed(seed, "validation", uid) for uid in rows.columns("uid")["uid"]]
    return rows.take(pl.Series("order", order, dtype=pl.Int64).arg_sort().head(count).to_numpy())


def _answers_frame(trajectories: Sequence[Trajectory]) -> pl.DataFrame:
    rows = {
        "trajectory_id": [one.request.trajectory_id for one in trajectories],
        "response": [one.text for one in trajectories],
        "finish_reason": [one.last.finish_reason.value for one in trajectories],
        "num_tokens": [one.num_tokens for one in trajectories],
    }
    return pl.DataFrame(rows, schema_overrides={"num_tokens": pl.Int32})


def _figures(scored: pl.DataFrame) -> tuple[float, dict[str, float]]:
    """Return the figure that chooses, and the metrics, of a Rewards table with ``data_source``."""
    counted = scored.filter(pl.col("correct").is_not_null() & pl.col("counts"))
    known = scored.filter(pl.col("score").is_not_null())
    rows, column, suffix = (
        (counted, "correct", "acc") if counted.height else (known, "score", "score")
    )
    metrics = {
        f"val-core/{source}/{suffix}/mean@1": mean_of(mine[column])
        for (source,), mine in rows.sort("data_source").group_by("data_source", maintain_order=True)
    }
    with_verdict = scored["correct"].drop_nulls()
    if with_verdict.len():
        metrics |= {
            "val/accuracy": mean_of(with_verdict),
            "val/judged_rows": float(with_verdict.len()),
        }
    metrics |= {
        "val/score": mean_of(known["score"]),
        "val/aborted_ratio": mean_of(scored["outcome"] == Outcome.ABORTED.value),
        **failure_metrics(scored, "val"),
    }
    return mean_of(rows[column]), metrics
