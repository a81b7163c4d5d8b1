"""What the learners say about a batch: log-probs under policy and reference, KL, values."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from rlcore.learner.pool import LearnerPool
from rlcore.rl.batch import sequences_of
from schemas.algorithm import KL


@dataclass(frozen=True, slots=True)
class BatchScores:
    """Per row, aligned with ``token_ids``; 0 off the mask.

    ``old``: log-probs (nats) of the policy at the start of the update phase, and ``entropies``;
    None where the update's own forward pass will say (``fused``). ``ref``: the frozen reference's,
    where KL needs them. ``kl``: the estimate per token of the recipe's estimator, on the old
    policy, where both are known. ``values``: the critic's.
    """

    masks: list[np.ndarray]
    old: list[np.ndarray] | None
    entropies: list[np.ndarray] | None
    ref: list[np.ndarray] | None
    kl: list[np.ndarray] | None
    values: list[np.ndarray] | None


def score_batch(
    rollouts: pl.DataFrame,
    *,
    temperature: float,
    kl: KL,
    learner: LearnerPool,
    reference: LearnerPool | None,
    critic: LearnerPool | None,
    fused: bool = False,
) -> BatchScores:
    """Recompute log-probs with the learner, at the rollout temperature; those of the policy not
    where they are ``fused`` into the update."""
    sequences = sequences_of(rollouts)
    exact = kl.uses_reference and kl.estimator == "full"
    masks = sequences.loss_mask
    old = entropies = ref = per_token_kl = None
    if not fused:
        scores = learner.logprobs(
            sequences, temperature, targets="loss_mask", entropy=True, full_kl=exact
        )
        old, entropies = scores.logprobs, scores.entropies
        per_token_kl = scores.kls if exact else None
    if reference is not None and not exact:
        ref = reference.logprobs(sequences, temperature, targets="loss_mask").logprobs
        if old is not None:
            per_token_kl = estimated_kl(old, ref, masks, kl.estimator)
    return BatchScores(
        masks=masks,
        old=old,
        entropies=entropies,
        ref=ref,
        kl=per_token_kl,
        values=None if critic is None else critic.values(sequences, targets="loss_mask"),
    )


def estimated_kl(
    old: list[np.ndarray], ref: list[np.ndarray], masks: list[np.ndarray], estimator: str
) -> list[np.ndarray]:
    """Return the KL estimate of each token (nats, float64) under ``kl_estimate``, 0 off the mask;
    ``old`` and ``ref``: log-probs under policy and reference."""
    # Only a recipe with a reference pays for torch in the controlling process.
    import torch

    from rlcore.algorithms.kl import kl_estimate

    flat = [torch.from_numpy(np.concatenate(part).astype(np.float64)) for part in (old, ref)]
    values = kl_estimate(flat[0], flat[1], estimator).numpy()
    values = np.where(np.concatenate(masks), values, 0.0)
    return np.split(values, np.cumsum([len(row) for row in old])[:-1])


def masked_mean(arrays: list[np.ndarray], masks: list[np.ndarray]) -> float:
    """Return the mean over all True places, 0 when there is none."""
    mask = np.concatenate(masks)
    return float(np.concatenate(arrays)[mask].mean()) if mask.any() else 0.0


def mean_sequence_kl(kl: list[np.ndarray], masks: list[np.ndarray]) -> float:
    """Return the mean over sequences of their masked mean, nats per token."""
    means = [row[mask].mean() for row, mask in zip(kl, masks, strict=True) if mask.any()]
    return float(np.mean(means)) if means else 0.0
