"""Statistics of the samples of one prompt (mean, deviation, whether all agree), and checks of the
arrays that an advantage estimator is given. Axes: R rows (trajectories), G groups. Groups go by id,
never by position, since batches are reordered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.errors import UserError


def per_row(name: str, values: np.ndarray, num_rows: int) -> np.ndarray:
    """Return ``values`` as [num_rows] float64, None as NaN.

    Raises ``UserError`` for another shape, and for an infinite number.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (num_rows,):
        raise UserError(
            f"{name} has shape {array.shape} and there are {num_rows} masks; "
            "pass one of each per row"
        )
    if np.isinf(array).any():
        row = int(np.flatnonzero(np.isinf(array))[0])
        raise UserError(
            f"{name}[{row}] = {array[row]} must be finite; return None for an answer that "
            "cannot be scored"
        )
    return array


def check_ragged(name: str, arrays: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> None:
    """Raise ``UserError`` unless ``arrays`` have the shapes of ``masks``, and finite numbers where
    these are True."""
    if len(arrays) != len(masks):
        raise UserError(f"{name} has {len(arrays)} rows and masks {len(masks)}; pass one per row")
    for row, (array, mask) in enumerate(zip(arrays, masks, strict=True)):
        if np.shape(array) != mask.shape:
            raise UserError(
                f"{name}[{row}] has shape {np.shape(array)} and masks[{row}] {mask.shape}; "
                "pass one number per token"
            )
        if not np.isfinite(np.asarray(array)[mask]).all():
            raise UserError(f"{name}[{row}] is not finite on a policy token")


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Statistics over the scorable rows of each group. All counts are of trajectories."""

    index_R: np.ndarray  # int, group of each row
    scorable_R: np.ndarray  # bool
    centred_R: np.ndarray  # score - mean of the group's scorable rows; 0 where all are equal
    count_G: np.ndarray  # scorable rows
    std_G: np.ndarray  # unbiased (ddof = 1); 0 for groups of fewer than two
    constant_G: np.ndarray  # bool: two or more scorable rows, all of one task score

    @property
    def learns_R(self) -> np.ndarray:
        """Rows [R] bool with a score and a baseline: groups of two or more unequal task scores."""
        learns_G = (self.count_G >= 2) & ~self.constant_G
        return learns_G[self.index_R] & self.scorable_R


def group_statistics(
    scores: np.ndarray,
    group_ids: np.ndarray,
    tolerance: float = 1e-9,
    *,
    task_scores: np.ndarray | None = None,
) -> GroupStatistics:
    """Return the statistics of ``scores`` [R] float64 (NaN = unscorable) by ``group_ids`` [R].

    Scores that differ by at most ``tolerance`` within a group are centred to exactly 0: the GRPO
    formula in fp32 gives an advantage of .056 for eight rewards of .7. A group is
    constant when its ``task_scores`` [R] (default: ``scores``) are so close: a penalty that differs
    for every answer, such as the KL in the reward, says nothing about which one is right.
    """
    _, index_R = np.unique(group_ids, return_inverse=True)
    num_groups = int(index_R.max()) + 1 if len(scores) else 0
    scorable_R = ~np.isnan(scores)
    filled_R = np.where(scorable_R, scores, 0.0)

    def total_G(values_R: np.ndarray) -> np.ndarray:
        return np.bincount(index_R, weights=values_R, minlength=num_groups)

    count_G = total_G(scorable_R).astype(np.int64)
    several_G = count_G >= 2

    def equal_G(values_R: np.ndarray) -> np.ndarray:
        low_G, high_G = np.full(num_groups, np.inf), np.full(num_groups, -np.inf)
        np.minimum.at(low_G, index_R[scorable_R], values_R[scorable_R])
        np.maximum.at(high_G, index_R[scorable_R], values_R[scorable_R])
        equal_G = several_G.copy()
        equal_G[several_G] = high_G[several_G] - low_G[several_G] <= tolerance
        return equal_G

    constant_G = equal_G(scores if task_scores is None else task_scores)
    differs_R = (several_G & ~equal_G(scores))[index_R] & scorable_R

    mean_G = total_G(filled_R) / np.maximum(count_G, 1)
    centred_R = np.where(differs_R, filled_R - mean_G[index_R], 0.0)
    std_G = np.sqrt(total_G(centred_R**2) / np.maximum(count_G - 1, 1))
    return GroupStatistics(index_R, scorable_R, centred_R, count_G, std_G, constant_G)
