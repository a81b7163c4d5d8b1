"""The old log-probs that an update scored for itself, and their gap to those of the advantages.

Both are of the policy before the update. They differ by the rounding of two packings, which in
bfloat16 is as wide as GSPO's clip range.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from rlcore.ragged import from_arrays
from rlcore.rl.update import UpdateBatch, policy_sequences, policy_steps
from schemas.recipe import Recipe


def own_logprobs(
    batch: UpdateBatch, recipe: Recipe, scored: Sequence[np.ndarray]
) -> tuple[pl.DataFrame, dict[str, float]]:
    """Return the OwnLogprobs table, and how far (nats) it is from the log-probs in ``batch``.

    ``scored``: ``UpdateResult.old_logprobs`` of ``policy_request(batch, ...)``, of each step
    [tokens of its sequences], NaN on tokens that did not train.
    """
    sequences = policy_sequences(batch, recipe.rl)
    names = batch.rollouts["trajectory_id"].to_list()
    trajectories: list[str] = []
    epochs: list[int] = []
    known: list[np.ndarray] = []
    gaps: list[np.ndarray] = []
    trained_before = np.zeros(len(names), dtype=np.int64)  # epochs; a row trains in all or in none
    steps = policy_steps(batch, recipe, sequences)
    for (_, rows), flat in zip(steps, scored, strict=True):
        cuts = np.cumsum(sequences.lengths[rows])[:-1]
        for row, own in zip(rows.tolist(), np.split(flat, cuts), strict=True):
            trained = ~np.isnan(own)
            if not trained.any():
                continue
            trajectories.append(names[row])
            epochs.append(int(trained_before[row]))
            trained_before[row] += 1
            known.append(np.where(trained, own, np.float32(0.0)))
            gaps.append(np.abs(own - sequences.per_token["old_logprobs"][row])[trained])
    frame = pl.DataFrame(
        {
            "trajectory_id": pl.Series(trajectories, dtype=pl.String),
            "epoch": pl.Series(epochs, dtype=pl.Int32),
            "own_logprobs": from_arrays("own_logprobs", known, pl.Float32),
        }
    )
    if not gaps:
        return frame, {}
    gap = np.concatenate(gaps)
    return frame, {
        "training/old_logprobs_gap_max": float(gap.max()),
        "training/old_logprobs_gap_mean": float(gap.mean()),
    }
