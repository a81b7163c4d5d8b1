"""The loss of a mini-batch, token by token of one of its sequences.

The term of a token is the objective of the learner with the weights of all other tokens 0, so the
terms add up to what the sequence has of the loss; nothing of the loss is written down again here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rlcore.algorithms.aggregation import token_weights
from rlcore.algorithms.objective import PolicyObjective, ValueObjective
from rlcore.learner.spec import TokenScores
from rlcore.models.packing import Sequences

if TYPE_CHECKING:
    import torch

    from rlcore.algorithms.objective_types import TokenBatch, TokenOutputs


@dataclass(frozen=True, slots=True)
class TokenTerms:
    """What the loss makes of the trained tokens of one answer in one optimizer step, [tokens] each.

    ``clip``: "low", "high", "dual" where it took the gradient, else "". ``kl``: the estimate in the
    loss, nats; empty where none is. ``loss``: the terms, whose sum is the answer's share of the
    mini-batch's loss, ``total``.
    """

    old: np.ndarray
    ratio: np.ndarray
    clip: list[str]
    kl: np.ndarray
    weight: np.ndarray
    loss: np.ndarray
    total: float


def token_terms(
    objective: PolicyObjective, sequences: Sequences, row: int, scored: TokenScores
) -> TokenTerms:
    """Return the terms of sequence ``row`` of the mini-batch ``sequences``.

    ``scored``: of that sequence alone, under the weights before the step.
    """
    import torch

    from rlcore.algorithms.kl import kl_estimate
    from rlcore.algorithms.objective_types import TokenBatch, TokenOutputs
    from rlcore.algorithms.policy_loss import importance_ratio

    mask = sequences.loss_mask[row]

    def picked(arrays: Sequence[np.ndarray], at: int = 0) -> torch.Tensor:
        return torch.from_numpy(np.asarray(arrays[at], dtype=np.float32)[mask])

    weights, mean_weight = _weights(objective, sequences, row)
    weight = torch.full((int(mask.sum()),), weights, dtype=torch.float32)
    fields = {name: picked(sequences.per_token[name], row) for name in objective.fields}
    new = picked(scored.logprobs)
    outputs = TokenOutputs(
        new,
        picked(scored.entropies) if scored.entropies else torch.zeros(0),
        picked(scored.kls) if scored.kls else torch.zeros(0),
    )
    rows = torch.zeros(len(weight), dtype=torch.int64)
    batch = TokenBatch(weight, mean_weight, rows, fields)
    terms = [_only(objective, outputs, batch, token) for token in range(len(weight))]
    old = fields.get("group_log_expectation", fields.get("old_logprobs", new))
    ratio = importance_ratio(objective.ratio_level, new, old, rows)
    kl = np.zeros(0)
    if objective.full_kl:
        kl = outputs.kl.numpy()
    elif objective.kl_coef > 0:
        kl = kl_estimate(new, fields["ref_logprobs"], objective.kl_estimator).numpy()
    return TokenTerms(
        old=old.numpy(),
        ratio=ratio.numpy(),
        clip=_clips(objective, ratio, new, fields["advantages"]),
        kl=kl,
        weight=weight.numpy(),
        loss=np.array(terms),
        total=float(objective(outputs, batch)[0]),
    )


def _clips(
    objective: PolicyObjective,
    ratio: "torch.Tensor",
    logprobs: "torch.Tensor",
    advantages: "torch.Tensor",
) -> list[str]:
    """Return which bound took the gradient of each token: "low", "high", "dual" or ""."""
    from rlcore.algorithms.policy_loss import policy_loss

    bounds = policy_loss(
        objective.policy_loss,
        ratio,
        logprobs,
        advantages,
        clip_low=objective.clip_low,
        clip_high=objective.clip_high,
        clip_dual=objective.clip_dual,
    )
    masks = (bounds.clipped_dual, bounds.clipped, bounds.outside_low)
    return [
        "dual" if dual else ("low" if low else "high") if clipped else ""
        for dual, clipped, low in zip(*(mask.tolist() for mask in masks), strict=True)
    ]


def value_terms(objective: ValueObjective, sequences: Sequences, row: int) -> np.ndarray:
    """Return the terms [tokens] of the critic's loss at the recorded values (``old_values``)."""
    import torch

    from rlcore.algorithms.objective_types import TokenBatch, TokenOutputs

    mask = sequences.loss_mask[row]
    weights, mean_weight = _weights(objective, sequences, row)
    fields = {
        name: torch.from_numpy(sequences.per_token[name][row][mask].astype(np.float32))
        for name in ("returns", "old_values")
    }
    weight = torch.full((int(mask.sum()),), weights, dtype=torch.float32)
    rows = torch.zeros(len(weight), dtype=torch.int64)
    batch = TokenBatch(weight, mean_weight, rows, fields)
    outputs = TokenOutputs(values=fields["old_values"])
    return np.array([_only(objective, outputs, batch, token) for token in range(len(weight))])


def _weights(
    objective: PolicyObjective | ValueObjective, sequences: Sequences, row: int
) -> tuple[float, float]:
    """Return the weight of each token of ``row`` in the loss, and in the means of metrics."""
    lengths = sequences.loss_lengths
    weights = token_weights(
        objective.aggregation, lengths, horizon=objective.horizon, groups=sequences.groups
    )
    return float(weights[row]), 1.0 / int(lengths.sum())


def _only(
    objective: PolicyObjective | ValueObjective,
    outputs: "TokenOutputs",
    batch: "TokenBatch",
    token: int,
) -> float:
    """Return the objective with the weights of all tokens but one 0."""
    import torch

    alone = torch.zeros_like(batch.weights)
    alone[token] = 1.0
    weighted = {name: f * alone for name, f in batch.fields.items() if name == "nll_weights"}
    share = replace(batch, weights=batch.weights * alone, fields={**batch.fields, **weighted})
    return float(objective(outputs, share)[0])
