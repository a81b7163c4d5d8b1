"""What the learners say about a batch: log-probs under policy and reference, KL, values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from rlcore.learner.pool import Answer, LearnerPool
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
    side_by_side: bool = False,
) -> BatchScores:
    """Recompute log-probs with the learner, at the rollout temperature; those of the policy not
    where they are ``fused`` into the update. ``side_by_side``: all at the same time
    (``RLWorkers.side_by_side``)."""
    sequences = sequences_of(rollouts)
    exact = kl.uses_reference and kl.estimator == "full"
    masks = sequences.loss_mask
    calls: dict[str, Callable[[], Answer[Any]]] = {}
    if not fused:
        calls["policy"] = lambda: learner.logprobs(
            sequences, temperature, targets="loss_mask", entropy=True, full_kl=exact
        )
    if reference is not None and not exact:
        calls["reference"] = lambda: reference.logprobs(sequences, temperature, targets="loss_mask")
    if critic is not None:
        calls["critic"] = lambda: critic.values(sequences, targets="loss_mask")
    found = results(calls, side_by_side=side_by_side)
    policy = found.get("policy")
    ref = found["reference"].logprobs if "reference" in found else None
    per_token_kl = policy.kls if policy is not None and exact else None
    if policy is not None and ref is not None:
        per_token_kl = estimated_kl(policy.logprobs, ref, masks, kl.estimator)
    return BatchScores(
        masks=masks,
        old=policy and policy.logprobs,
        entropies=policy and policy.entropies,
        ref=ref,
        kl=per_token_kl,
        values=found.get("critic"),
    )


def results(
    calls: Mapping[str, Callable[[], Answer[Any]]], *, side_by_side: bool
) -> dict[str, Any]:
    """Return the result of each call. A call is a function that starts it.

    ``side_by_side``: all are started before the first is waited for, so that each must be of ranks
    of its own. What they compute depends on neither order.
    """
    if side_by_side:
        answers = {name: start() for name, start in calls.items()}
        return {name: answer.result() for name, answer in answers.items()}
    return {name: start().result() for name, start in calls.items()}


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
