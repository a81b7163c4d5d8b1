"""Loss aggregation as weights: loss = sum over tokens of weight x token loss.

The weights carry the global counts of the optimizer step (all micro-batches, all ranks), so a
plain sum over any split of the batch is the loss, and its gradient cannot depend on the split.
"""

from dataclasses import dataclass

import numpy as np

from schemas.errors import UserError, did_you_mean

MODES = (
    "token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)


@dataclass(frozen=True, slots=True)
class Totals:
    """Global counts of one optimizer step; rows without a loss token do not count."""

    tokens: int
    rows: int

    @classmethod
    def of(cls, lengths: np.ndarray) -> "Totals":
        """Count ``lengths`` [rows], the number of loss tokens of each row."""
        return cls(tokens=int(lengths.sum()), rows=int(np.count_nonzero(lengths)))


def token_weights(
    mode: str, lengths: np.ndarray, totals: Totals | None = None, horizon: int | None = None
) -> np.ndarray:
    """Return [rows] float64: the weight of each loss token of each row.

    ``lengths`` [rows] counts loss tokens per row (of this share of the batch), ``totals`` the
    whole step's (default: the share is the whole). With N tokens and B non-empty rows:

    - token-mean               1 / N           DAPO eq. 8 over the mini-batch (SPEC ruling)
    - seq-mean-token-sum       1 / B
    - seq-mean-token-mean      1 / (B |y|)     GRPO paper eq. 3
    - seq-mean-token-sum-norm  1 / (B H)       Dr.GRPO, H = ``horizon`` in tokens, a constant

    Rows without a loss token weigh 0 and are not in B. Raises ``UserError`` for an unknown mode,
    a missing horizon, or totals without a token.
    """
    totals = totals or Totals.of(lengths)
    if mode not in MODES:
        raise UserError(
            f"aggregation = '{mode}' is unknown; use one of {', '.join(MODES)}"
            f"{did_you_mean(mode, MODES)}"
        )
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
    if horizon is None or horizon < 1:
        raise UserError(
            f"aggregation = '{mode}' divides by a constant horizon and horizon = {horizon}; "
            "set it to the longest response in tokens"
        )
    return np.where(filled, 1.0 / (totals.rows * horizon), 0.0)
