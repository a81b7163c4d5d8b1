"""The trajectories of an iteration, a row each, in one frame from the sampler to the packer.

Its columns are those of the tables Rollouts and Rewards, ``baseline`` (the score of the prompt's
greedy answer, where the estimator wants one), what the learners score (``scores``), and those of
the table Advantages. No two tables share a column but ``trajectory_id``.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import polars as pl

from rlcore.models.packing import Sequences
from rlcore.models.ragged import to_arrays
from schemas.artifacts import ArtifactRef

Read = Callable[[ArtifactRef, str], pl.DataFrame]
Round = tuple[ArtifactRef, ArtifactRef]  # rollouts and rewards of one generation round


def drawn(read: Read, rounds: Iterable[Round]) -> pl.DataFrame:
    """Return all trajectories of ``rounds`` and how they were scored; ``read`` returns a table."""
    return pl.concat([_of_round(read, *refs) for refs in rounds])


def rounds_of(parents: Mapping[str, ArtifactRef]) -> list[Round]:
    """Return the rounds among the ``parents`` of recorded advantages (``DrawnGroups.parents``)."""
    roles = [role for role in parents if role.partition("-")[0] == "rollouts"]
    return [
        (parents[role], parents[role.replace("rollouts", "rewards", 1)])
        for role in sorted(roles, key=lambda role: int(role.partition("-")[2] or 0))
    ]


def _of_round(read: Read, rollouts: ArtifactRef, rewards: ArtifactRef) -> pl.DataFrame:
    frame = beside(read(rollouts, "rollouts"), read(rewards, "rewards"))
    if "baselines" not in rollouts.rows:
        return frame
    greedy = read(rollouts, "baselines").select("trajectory_id", "uid")
    scored = greedy.join(read(rewards, "baseline_rewards"), on="trajectory_id")
    baselines = scored.select("uid", baseline="score")
    return frame.join(baselines, on="uid", how="left", maintain_order="left", validate="m:1")


def beside(frame: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """Return ``frame`` with the columns of ``table``, matched by ``trajectory_id``; null in rows
    that ``table`` does not have."""
    return frame.join(table, on="trajectory_id", how="left", maintain_order="left", validate="1:1")


def of_prompts(frame: pl.DataFrame, uids: tuple[str, ...]) -> pl.DataFrame:
    """Return the rows of ``uids``, their groups in that order."""
    order = pl.DataFrame({"uid": uids}, schema={"uid": pl.String})
    kept = order.join(frame, on="uid", how="left", maintain_order="left_right")
    return kept.select(frame.columns)


def policy_tokens(frame: pl.DataFrame) -> np.ndarray:
    """Return the policy tokens of each row [rows] int64."""
    return frame["loss_mask"].list.sum().cast(pl.Int64).to_numpy()


def arrays_of(frame: pl.DataFrame, name: str) -> list[np.ndarray] | None:
    """Return a column of lists as one array per row; None where it is not known of every row."""
    if name not in frame.columns or frame[name].null_count():
        return None
    return to_arrays(frame[name])


def sequences_of(
    frame: pl.DataFrame, per_token: Mapping[str, list[np.ndarray]] | None = None
) -> Sequences:
    """Return the sequences of ``frame``, row for row, in the groups of their prompts.

    ``per_token``: arrays aligned with ``token_ids``, made float32.
    """
    _, groups = np.unique(frame["uid"].to_numpy(), return_inverse=True)
    return Sequences(
        token_ids=to_arrays(frame["token_ids"]),
        loss_mask=to_arrays(frame["loss_mask"]),
        per_token={
            name: [array.astype(np.float32) for array in arrays]
            for name, arrays in (per_token or {}).items()
        },
        groups=groups,
    )
