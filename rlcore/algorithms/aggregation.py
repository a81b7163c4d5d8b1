"""Loss aggregation as weights: loss = sum over tokens of weight x token loss.

The weights carry the global counts of the optimizer step (all micro-batches, all ranks), so a
plain sum over any split of the batch is the loss, and its gradient cannot depend on the split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from schemas.errors import UserError


@dataclass(frozen=True, slots=True)
class Totals:
    """Global counts of one optimizer step; rows without a loss token do not count.

    ``groups``: loss tokens of each prompt group that has any; empty when rows have no group.
    """

    tokens: int
    rows: int
    groups: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, lengths: np.ndarray, groups: np.ndarray | None = None) -> Totals:
        """Count ``lengths`` [rows], the loss tokens of each row, and of its group [rows] int64."""
        tokens: Counter[int] = Counter()
        if groups is not None:
            for group, length in zip(groups.tolist(), lengths.tolist(), strict=True):
                if length:
                    tokens[group] += length
        return cls(int(lengths.sum()), int(np.count_nonzero(lengths)), dict(tokens))

    @classmethod
    def added(cls, shares: Iterable[Totals]) -> Totals:
        """Add the counts of all shares of a step; a group may have rows in several."""
        tokens, rows, groups = 0, 0, Counter()
        for share in shares:
            tokens, rows = tokens + share.tokens, rows + share.rows
            groups.update(share.groups)
        return cls(tokens, rows, dict(groups))


def token_weights(
    mode: str,
    lengths: np.ndarray,
    totals: Totals | None = None,
    horizon: int | None = None,
    groups: np.ndarray | None = None,
) -> np.ndarray:
    """Return [rows] float64: the weight of each loss token of each row.

    ``lengths`` [rows] counts loss tokens per row (of this share of the batch), ``totals`` the
    whole step's (default: the share is the whole), ``groups`` [rows] int64 the prompt of each row.
    With N tokens, B non-empty rows, and P groups, of which the row's has n tokens:

    - token-mean               1 / N           DAPO eq. 8 over the mini-batch, as in verl
    - group-token-mean         1 / (P n)       DAPO eq. 8 as printed: each prompt weighs the same
    - seq-mean-token-sum       1 / B
    - seq-mean-token-mean      1 / (B |y|)     GRPO paper eq. 3
    - seq-mean-token-sum-norm  1 / (B H)       Dr.GRPO, H = ``horizon`` in tokens, a constant

    Rows without a loss token weigh 0 and are not in B. Raises ``UserError`` for a missing
    horizon or missing groups, or totals without a token.
    """
    totals = totals or Totals.of(lengths, groups)
    if totals.tokens < 1 or totals.rows < 1:
        raise UserError(
            "the mini-batch holds no token to train on; every loss mask is empty, so check "
            "that responses are not empty or all aborted"
        )
    filled = lengths > 0
    if mode == "token-mean":
        return np.where(filled, 1.0 / totals.tokens, 0.0)
    if mode == "seq-mean-token-sum":
        return np.where(filled, 1.0 / totals.rows, 0.0)
    if mode == "seq-mean-token-mean":
        return np.where(filled, 1.0 / (totals.rows * np.maximum(lengths, 1)), 0.0)
    if mode == "group-token-mean":
        return _group_weights(lengths, totals, groups)
    assert mode == "seq-mean-token-sum-norm", mode
    if horizon is None or horizon < 1:
        raise UserError(
            f"aggregation = '{mode}' divides by a constant horizon and horizon = {horizon}; "
            "set it to the longest response in tokens"
        )
    return np.where(filled, 1.0 / (totals.rows * horizon), 0.0)


def _group_weights(lengths: np.ndarray, totals: Totals, groups: np.ndarray | None) -> np.ndarray:
    if groups is None or not totals.groups:
        raise UserError(
            "aggregation = 'group-token-mean' needs the prompt group of each row; "
            "use 'token-mean' where rows have none"
        )
    tokens = np.array([totals.groups.get(group, 0) for group in groups.tolist()], dtype=np.float64)
    return np.where(lengths > 0, 1.0 / (len(totals.groups) * np.maximum(tokens, 1)), 0.0)
