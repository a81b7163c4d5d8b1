"""What the learners compute of a batch before the update: log-probs under policy and reference, KL,
values."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl

from rlcore.algorithms.kl import kl_estimate
from rlcore.learner.pool import LearnerFuture
from rlcore.models.ragged import from_arrays
from rlcore.rl.batch import sequences_of
from rlcore.rl.roles import RLWorkers
from rlcore.rl.update import iteration_of
from schemas.rl import RLSection


def with_scores(
    frame: pl.DataFrame, rl: RLSection, workers: RLWorkers, *, fused: bool = False
) -> pl.DataFrame:
    """Return ``frame`` with what the learners compute again, at the rollout temperature: columns of
    one number per token, 0 off the loss mask.

    ``old_logprobs`` (nats) of the policy at the start of the update phase, and ``entropies``; not
    where the update's own forward pass will say (``fused``). ``ref_logprobs``: the frozen
    reference's, where KL needs them now. ``kl``: the estimate of the recipe's estimator on the old
    policy, where both are known. ``values``: the critic's.
    """
    sequences = sequences_of(frame)
    reference, critic, kl = workers.reference, workers.critic, rl.algorithm.kl
    temperature = rl.rollout.temperature
    is_due = kl.is_due(iteration_of(frame) if frame.height else 1)
    exact = is_due and kl.estimator == "full"
    calls: dict[str, Callable[[], LearnerFuture[Any]]] = {}
    if not fused:
        calls["policy"] = lambda: workers.learner.logprobs(
            sequences, temperature, targets="loss_mask", entropy=True, full_kl=exact
        )
    if reference is not None and is_due and not exact:
        calls["reference"] = lambda: reference(sequences, temperature, targets="loss_mask")
    if critic is not None:
        calls["critic"] = lambda: critic.values(sequences, targets="loss_mask")
    if workers.side_by_side:  # started before the first is waited for; no result depends on it
        answers = {name: start() for name, start in calls.items()}
        found = {name: answer.result() for name, answer in answers.items()}
    else:
        found = {name: start().result() for name, start in calls.items()}
    columns: dict[str, list[np.ndarray]] = {}
    if "policy" in found:
        policy = found["policy"]
        columns |= {"old_logprobs": policy.logprobs, "entropies": policy.entropies}
        columns |= {"kl": policy.kls} if exact else {}
    if "reference" in found:
        columns["ref_logprobs"] = found["reference"].logprobs
    if "critic" in found:
        columns["values"] = found["critic"]
    scored = frame.with_columns(from_arrays(n, c, pl.Float32) for n, c in columns.items())
    if "policy" in found and "reference" in found:
        old, ref = columns["old_logprobs"], columns["ref_logprobs"]
        estimate = estimated_kl(old, ref, sequences.loss_mask, kl.estimator)
        scored = scored.with_columns(from_arrays("kl", estimate, pl.Float64))
    return scored


def estimated_kl(
    old: list[np.ndarray], ref: list[np.ndarray], masks: list[np.ndarray], estimator: str
) -> list[np.ndarray]:
    """Return the KL estimate of each token (nats, float64) under ``kl_estimate``, 0 off the mask;
    ``old`` and ``ref``: log-probs under policy and reference."""
    import torch  # it reads variables that are set once the program runs (cluster.host_settings)

    flat = [torch.from_numpy(np.concatenate(part).astype(np.float64)) for part in (old, ref)]
    values = kl_estimate(flat[0], flat[1], estimator).numpy()
    values = np.where(np.concatenate(masks), values, 0.0)
    return np.split(values, np.cumsum([len(row) for row in old])[:-1])


def masked_mean(arrays: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> float:
    """Return the mean over all True places, 0 when there is none."""
    mask = np.concatenate(masks)
    return float(np.concatenate(arrays)[mask].mean()) if mask.any() else 0.0


def mean_sequence_kl(kl: list[np.ndarray], masks: list[np.ndarray]) -> float:
    """Return the mean over sequences of their masked mean, nats per token."""
    means = [row[mask].mean() for row, mask in zip(kl, masks, strict=True) if mask.any()]
    return float(np.mean(means)) if means else 0.0
