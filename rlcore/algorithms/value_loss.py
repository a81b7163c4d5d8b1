"""The critic: its loss per token, and how much of the returns it explains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

CONSTANT_SPREAD = 1e-6  # relative spread of returns below which they differ by fp32 rounding only


def clipped_value_loss(
    values: torch.Tensor, returns: torch.Tensor, old_values: torch.Tensor, clip: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (loss [tokens], clipped [tokens] bool).

    1/2 max((V - ret)^2, (clip(V, V_old - c, V_old + c) - ret)^2), with ``old_values`` those of
    rollout time (PPO as in verl compute_value_loss); ``clip`` None = 1/2 (V - ret)^2. Clipped: the
    bounded value's loss is the larger, so the token has no gradient.
    """
    import torch

    plain = (values - returns).square()
    if clip is None:
        return 0.5 * plain, torch.zeros_like(plain, dtype=torch.bool)
    bounded = values.clamp(old_values - clip, old_values + clip)
    bounded_loss = (bounded - returns).square()
    return 0.5 * plain.maximum(bounded_loss), bounded_loss > plain


def explained_variance(values: np.ndarray, returns: np.ndarray) -> float:
    """Return 1 - Var(ret - V) / (Var(ret) + 1e-5), unbiased, over valid tokens [tokens].

    NaN when there is nothing to explain: fewer than two tokens, or constant returns.
    """
    values = np.asarray(values, dtype=np.float64)
    returns = np.asarray(returns, dtype=np.float64)
    if len(returns) < 2:
        return float("nan")
    size = max(1.0, float(np.abs(returns).max()))
    if np.ptp(returns) <= CONSTANT_SPREAD * size:
        return float("nan")
    return float(1.0 - (returns - values).var(ddof=1) / (returns.var(ddof=1) + 1e-5))
