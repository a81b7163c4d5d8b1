"""The clipped surrogate, per token. Aggregation happens outside (``aggregation.token_weights``)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from schemas.errors import UserError, did_you_mean

LOG_RATIO_LIMIT = 20.0  # nats; keeps exp finite when a stale policy has drifted far


@dataclass(frozen=True, slots=True)
class ClippedLoss:
    """All of the shape of the ratio; the three masks are booleans, for metrics."""

    loss: torch.Tensor
    clipped: torch.Tensor  # the low/high clip took the gradient
    clipped_dual: torch.Tensor  # A < 0 and the dual clip took the gradient
    outside_low: torch.Tensor  # clipped from below (A < 0)


def token_ratio(logprobs: torch.Tensor, old_logprobs: torch.Tensor) -> torch.Tensor:
    """Return r = exp(clamp(lp - old, -20, 20)) per token (PPO, GRPO, DAPO)."""
    return (logprobs - old_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


# Level of the importance ratio -> function; sequence (GSPO) and group (GEPO) levels register here.
RATIOS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"token": token_ratio}


def importance_ratio(
    level: str, logprobs: torch.Tensor, old_logprobs: torch.Tensor
) -> torch.Tensor:
    """Return the ratio at ``level``; ``UserError`` with the nearest name for an unknown one."""
    if level not in RATIOS:
        raise UserError(
            f"ratio_level = '{level}' is unknown; use one of {', '.join(RATIOS)}"
            f"{did_you_mean(level, RATIOS)}"
        )
    return RATIOS[level](logprobs, old_logprobs)


def clipped_surrogate(
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    clip_dual: float | None,
) -> ClippedLoss:
    """L = max(-A r, -A clip(r, 1 - low, 1 + high)); where A < 0 also L = min(L, -A dual).

    PPO arXiv 1707.06347 eq. 7; asymmetric clip DAPO arXiv 2503.14476; dual clip arXiv 1912.09729
    eq. 5, ``None`` = off. Elementwise on any shape.
    """
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(plain, bounded)
    clipped = bounded > plain
    clipped_dual = torch.zeros_like(clipped)
    if clip_dual is not None:
        ceiling = -advantages * clip_dual
        clipped_dual = (advantages < 0) & (loss > ceiling)
        loss = torch.where(advantages < 0, torch.minimum(loss, ceiling), loss)
    return ClippedLoss(loss, clipped, clipped_dual, clipped & (advantages < 0))
