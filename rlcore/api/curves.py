"""The curves that a run returns: one list of numbers per curve, one number per iteration."""

from collections.abc import Mapping
from math import nan

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


class Curves:
    """Collects ``CURVES``; every list is as long as the iterations seen.

    NaN where a number is not defined: value_loss and explained_variance without a critic,
    reference_kl without a reference, what belongs to the policy during value warm-up or where an
    update makes no step, explained_variance of constant returns, average_reward when no row could
    be scored. filtered_ratio is 0 without dynamic sampling.
    """

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {name: [] for name in CURVES}

    def add(self, metrics: Mapping[str, float]) -> None:
        """Append one iteration."""
        for curve, metric in CURVES.items():
            missing = 0.0 if curve == "filtered_ratio" else nan
            self.values[curve].append(float(metrics.get(metric, missing)))
