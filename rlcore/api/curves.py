"""The curves that a run returns: one list of numbers per curve, one number per iteration."""

from math import nan

import polars as pl

# Curve -> metric of the loop (verl's name). The loop leaves out what is not defined.
CURVES = {
    "accuracy": "critic/accuracy",
    "average_reward": "critic/score/mean",
    "policy_loss": "actor/pg_loss",
    "value_loss": "critic/vf_loss",
    "explained_variance": "critic/vf_explained_var",
    "positive_lm_loss": "actor/positive_nll",
    "filtered_ratio": "train/filtered_ratio",
    "kl": "actor/ppo_kl",
    "reference_kl": "actor/ref_kl",
    "entropy": "actor/entropy",
    "clip_fraction": "actor/pg_clipfrac",
    "grad_norm": "actor/grad_norm",
    "learning_rate": "actor/lr",
    "response_length": "response_length/mean",
    "error_fraction": "reward/error_fraction",
    "timeout_fraction": "reward/timeout_fraction",
}


def curves(metrics: pl.DataFrame) -> dict[str, list[float]]:
    """Return ``CURVES`` of a run's Metrics table; every list is as long as its iterations (from 1).

    NaN where a number is not defined: value_loss and explained_variance without a critic,
    reference_kl without a reference, what belongs to the policy during value warm-up or where an
    update makes no step, explained_variance of constant returns, average_reward when no row could
    be scored. filtered_ratio is 0 without dynamic sampling.
    """
    steps = sorted(set(metrics["step"]) - {0})  # 0: the first validation
    rows = metrics.select("step", "name", "value").iter_rows()
    known = {(step, name): value for step, name, value in rows if value is not None}
    return {
        curve: [
            float(known.get((step, metric), 0.0 if curve == "filtered_ratio" else nan))
            for step in steps
        ]
        for curve, metric in CURVES.items()
    }
