"""From tables to what the learner takes."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from rlcore.models.packing import Sequences
from rlcore.ragged import to_arrays, to_floats
from rlcore.store.reader import ArtifactReader
from schemas.artifacts import ArtifactRef


def sequences_of(
    rollouts: pl.DataFrame, per_token: Mapping[str, list[np.ndarray]] | None = None
) -> Sequences:
    """Return the sequences of a Rollouts table, row for row, in the groups of their prompts.

    ``per_token``: arrays aligned with ``token_ids``, made float32.
    """
    _, groups = np.unique(rollouts["uid"].to_numpy(), return_inverse=True)
    return Sequences(
        token_ids=to_arrays(rollouts["token_ids"]),
        loss_mask=to_arrays(rollouts["loss_mask"]),
        per_token={
            name: [array.astype(np.float32) for array in arrays]
            for name, arrays in (per_token or {}).items()
        },
        groups=groups,
    )


@dataclass(frozen=True)  # without slots: the joined rewards are kept
class RolloutBatch:
    """The trajectories of one iteration and how they were scored.

    ``rollouts``, ``rewards``: tables joined by trajectory_id. ``baselines``: (uid, score) of each
    prompt's greedy answer, where the estimator wants one.
    """

    rollouts: pl.DataFrame
    rewards: pl.DataFrame
    baselines: pl.DataFrame | None = None

    def only(self, uids: tuple[str, ...]) -> "RolloutBatch":
        """Return the trajectories of ``uids``, their groups in that order."""
        if self.rollouts["uid"].rle().struct.field("value").to_list() == list(uids):
            return self  # as they are: the usual case
        order = pl.DataFrame({"uid": uids}, schema={"uid": pl.String})
        kept = order.join(self.rollouts, on="uid", how="left", maintain_order="left_right")
        return RolloutBatch(kept.select(self.rollouts.columns), self.rewards, self.baselines)

    @cached_property
    def rewards_in_order(self) -> pl.DataFrame:
        """The rewards, row for row those of ``rollouts``."""
        if self.rewards["trajectory_id"].equals(self.rollouts["trajectory_id"]):
            return self.rewards
        return self.rollouts.select("trajectory_id").join(
            self.rewards, on="trajectory_id", how="left", maintain_order="left", validate="1:1"
        )

    def scores(self) -> np.ndarray:
        """Return the task scores [rows] float64, NaN where a row has none."""
        return to_floats(self.rewards_in_order["score"])

    def lengths(self) -> np.ndarray:
        """Return the policy tokens of each row [rows] int64."""
        return self.rollouts["loss_mask"].list.sum().cast(pl.Int64).to_numpy()

    def baseline_scores(self) -> np.ndarray | None:
        """Return the score of each row's greedy answer [rows] float64, NaN where it has none."""
        if self.baselines is None:
            return None
        joined = self.rollouts.select("uid").join(
            self.baselines, on="uid", how="left", maintain_order="left", validate="m:1"
        )
        return to_floats(joined["score"])


def round_of(store: ArtifactReader, rollouts: ArtifactRef, rewards: ArtifactRef) -> RolloutBatch:
    """Read the tables of one generation round."""
    baselines = None
    if "baselines" in rollouts.rows:
        greedy = store.table(rollouts, "baselines").select("trajectory_id", "uid")
        scored = store.table(rewards, "baseline_rewards")
        baselines = greedy.join(scored, on="trajectory_id").select("uid", "score")
    return RolloutBatch(
        store.table(rollouts, "rollouts"), store.table(rewards, "rewards"), baselines
    )


def concat_batches(batches: list[RolloutBatch]) -> RolloutBatch:
    """Return all trajectories as one batch."""
    baselines = [batch.baselines for batch in batches if batch.baselines is not None]
    return RolloutBatch(
        pl.concat([batch.rollouts for batch in batches]),
        pl.concat([batch.rewards for batch in batches]),
        pl.concat(baselines) if baselines else None,
    )
