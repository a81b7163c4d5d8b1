"""Truncated importance sampling between the learner's and the sampler's log-probs."""

import torch

from schemas.errors import UserError, did_you_mean

LEVELS = ("none", "token", "sequence")
LOG_RATIO_LIMIT = 20.0  # nats; exp stays finite before the cap


def importance_weights(
    old_logprobs: torch.Tensor,
    rollout_logprobs: torch.Tensor,
    rows: torch.Tensor,
    *,
    level: str,
    cap: float,
) -> torch.Tensor:
    """Return min(exp(old - rollout), cap) per token [tokens], without gradient.

    ``rows`` [tokens] int64: the sequence of each token; at level "sequence" the log-ratios of a
    sequence are summed first (verl rollout_corr_helper). Raises ``UserError`` for another level.
    """
    if level not in LEVELS:
        raise UserError(
            f"importance_correction.level = '{level}' is unknown; use one of {', '.join(LEVELS)}"
            f"{did_you_mean(level, LEVELS)}"
        )
    with torch.no_grad():
        if level == "none":
            return torch.ones_like(old_logprobs)
        log_ratio = old_logprobs - rollout_logprobs
        if level == "sequence":
            num_rows = int(rows.max()) + 1 if rows.numel() else 0
            log_ratio = log_ratio.new_zeros(num_rows).index_add_(0, rows, log_ratio)[rows]
        return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp().clamp(max=cap)
