"""Checks of what an estimator is given."""

from __future__ import annotations

from collections.abc import Sequence

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
