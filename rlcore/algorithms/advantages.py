"""Advantages from scores, in float64 numpy, before any tensor exists.

An estimator takes one score per trajectory and its group id and returns one advantage per
trajectory. ``ESTIMATORS`` names them; a new one is a function and a line there.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from schemas.errors import UserError, did_you_mean


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """``values`` [rows] float64, and what the groups looked like."""

    values: np.ndarray
    num_groups: int
    num_constant_groups: int  # two or more scorable rows, all of one score: no gradient
    num_singletons: int  # one scorable row: no baseline, advantage 0
    num_unscorable: int  # rows without a score: outside the baseline, advantage 0

    @property
    def constant_fraction(self) -> float:
        """Share of groups that teach nothing because their scores are equal."""
        return self.num_constant_groups / max(self.num_groups, 1)


def group_advantages(
    scores: np.ndarray,
    group_ids: np.ndarray,
    *,
    norm_by_std: bool = True,
    eps: float = 1e-6,
    tolerance: float = 1e-9,
) -> GroupAdvantages:
    """GRPO: A_i = (s_i - mean_g) / (std_g + eps), unbiased std (arXiv 2402.03300 section 4.1.2).

    ``scores`` [rows], NaN or None where a row could not be scored; ``group_ids`` [rows] of any
    sortable type, in any order. ``norm_by_std=False`` is Dr.GRPO. A group whose scores differ by
    at most ``tolerance`` gets exactly 0 (the formula in fp32 gives .056 for eight rewards of .7);
    so do a group of one (SPEC section 2: verl returns the raw reward) and unscorable rows.

    >>> group_advantages(np.array([1.0, 0, 0, 0]), np.zeros(4)).values.round(3)
    array([ 1.5, -0.5, -0.5, -0.5])

    Raises ``UserError`` when the two arrays differ in length or a score is infinite.
    """
    values = np.asarray(scores, dtype=np.float64)
    ids = np.asarray(group_ids)
    if values.shape != ids.shape or values.ndim != 1:
        raise UserError(
            f"scores has shape {values.shape} and group_ids {ids.shape}; pass one of each per row"
        )
    if np.isinf(values).any():
        row = int(np.flatnonzero(np.isinf(values))[0])
        raise UserError(
            f"scores[{row}] = {values[row]} must be finite; return None for an answer that "
            "cannot be scored"
        )
    _, group_R = np.unique(ids, return_inverse=True)
    num_groups = int(group_R.max()) + 1 if len(values) else 0
    scorable = ~np.isnan(values)
    filled = np.where(scorable, values, 0.0)

    count_G = np.bincount(group_R, weights=scorable, minlength=num_groups)
    mean_G = np.bincount(group_R, weights=filled, minlength=num_groups) / np.maximum(count_G, 1)
    centred = np.where(scorable, filled - mean_G[group_R], 0.0)
    low_G = np.full(num_groups, np.inf)
    high_G = np.full(num_groups, -np.inf)
    np.minimum.at(low_G, group_R[scorable], values[scorable])
    np.maximum.at(high_G, group_R[scorable], values[scorable])
    constant_G = (count_G >= 2) & (high_G - low_G <= tolerance)
    learns_G = (count_G >= 2) & ~constant_G

    advantages = centred
    if norm_by_std:
        square_G = np.bincount(group_R, weights=centred**2, minlength=num_groups)
        std_G = np.sqrt(square_G / np.maximum(count_G - 1, 1))
        advantages = centred / (std_G + eps)[group_R]
    return GroupAdvantages(
        values=np.where(learns_G[group_R] & scorable, advantages, 0.0),
        num_groups=num_groups,
        num_constant_groups=int(constant_G.sum()),
        num_singletons=int((count_G == 1).sum()),
        num_unscorable=int((~scorable).sum()),
    )


ESTIMATORS: dict[str, Callable[..., GroupAdvantages]] = {"grpo": group_advantages}


def estimator(name: str) -> Callable[..., GroupAdvantages]:
    """Return the estimator called ``name``; ``UserError`` with the nearest name otherwise."""
    if name not in ESTIMATORS:
        raise UserError(
            f"advantage = '{name}' is unknown; use one of {', '.join(ESTIMATORS)}"
            f"{did_you_mean(name, ESTIMATORS)}"
        )
    return ESTIMATORS[name]
