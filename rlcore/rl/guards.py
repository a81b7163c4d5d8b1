"""Silent failures that stop an iteration at once: stale weights, sampler drift. What shows only
over iterations is the diagnostics' (``rlcore/diagnostics``)."""

import numpy as np
import polars as pl

from rlcore.models.weight_digest import WeightStamp
from schemas.errors import UserError
from schemas.rl import GapBound


class StaleWeightsError(UserError):
    """Rollouts were sampled from other weights than the learner holds."""


class SamplerDriftError(UserError):
    """Sampler and learner disagree on the log-probs of the same tokens."""


def check_fresh(rollouts: pl.DataFrame, sampler: WeightStamp) -> None:
    """Raise StaleWeightsError unless every rollout was sampled from the weights that it is due to
    be sampled from: the learner's, or earlier ones (``LoopState.draw``)."""
    stamps = zip(rollouts["weight_version"], rollouts["weight_digest"], strict=True)
    for version, digest in sorted(set(stamps)):
        if (version, digest) != (sampler.version, sampler.digest):
            raise StaleWeightsError(
                f"rollouts were sampled from weights version {version} (digest {digest[:12]}) but"
                f" are to be of version {sampler.version} (digest {sampler.digest[:12]}): the"
                " engine was not synced after an update; rerun the flow to sync it again"
            )


def check_sampler_gap(
    sampler: list[np.ndarray],
    learner: list[np.ndarray],
    masks: list[np.ndarray],
    *,
    bound: GapBound,
) -> dict[str, float]:
    """Return the gap between sampler and learner log-probs, which hold the same policy; raise
    SamplerDriftError above ``bound``.

    All arrays are per row, aligned with its tokens. Metrics are verl's
    ``training/rollout_probs_diff_*`` (probabilities) and the log-prob gap itself: maximum and
    mean in nats, and ``rollout_mult_prob_error`` = exp(mean).
    """
    mask = np.concatenate(masks).astype(bool)
    sampled = np.concatenate(sampler)[mask].astype(np.float64)
    learnt = np.concatenate(learner)[mask].astype(np.float64)
    if not mask.any():
        return {}
    gap = np.abs(learnt - sampled)
    probability_gap = np.abs(np.exp(learnt) - np.exp(sampled))
    worst, error = float(gap.max()), float(np.exp(gap.mean()))
    by_max = bound.measure == "max"
    if not (worst if by_max else error) <= bound.limit:
        what = f"max |gap| = {worst:.3g} nats" if by_max else f"exp(mean |gap|) = {error:.4g}"
        raise SamplerDriftError(
            f"sampler and learner log-probs differ on the same {gap.size:,} tokens:"
            f" {what}, above {bound.option} = {bound.limit:g} (max {worst:.3g}, mean"
            f" {gap.mean():.3g} nats): the engine does not sample from the weights it reports, or"
            " its numerics differ; rerun to sync it again, or raise the bound if the precision"
            " explains it"
        )
    return {
        "training/rollout_logprobs_gap_max": worst,
        "training/rollout_logprobs_gap_mean": float(gap.mean()),
        "training/rollout_mult_prob_error": error,
        "training/rollout_probs_diff_max": float(probability_gap.max()),
        "training/rollout_probs_diff_mean": float(probability_gap.mean()),
    }
