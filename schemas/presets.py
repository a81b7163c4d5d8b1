"""Algorithms by name: what each preset sets in the sections ``rl`` and ``preference``, and the
source of the numbers.

A recipe may override every one of them. Learning rates are those of 0.5-32 B models; warm-up
counts optimizer steps.
"""

from collections.abc import Mapping
from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # PPO arXiv 1707.06347 with GAE 1506.02438; numbers: verl's PPO-on-one-GPU example.
    "ppo": {
        "algorithm": {
            "advantage": "gae",
            "gae": {"gamma": 1.0, "lam": 1.0},
            "clip_low": 0.2,
            "clip_high": 0.2,
            "clip_dual": 3.0,
            "aggregation": "token-mean",
            "kl": {"where": "reward", "estimator": "k1", "coef": 0.001},
        },
        "rollout": {"prompts": 64, "samples": 1, "max_new_tokens": 512},
        "update": {"mini_batches": 2, "optimizer": {"lr": 1e-6}},
        "critic": {"clip": 0.5, "optimizer": {"lr": 1e-5}},
    },
    # InstructGPT arXiv 2203.02155 App. C.4: batch 512, mini-batch 64, ptx 27.8, beta .02.
    "ppo-instructgpt": {
        "algorithm": {
            "advantage": "gae",
            "gae": {"gamma": 1.0, "lam": 0.95},
            "clip_low": 0.2,
            "clip_high": 0.2,
            "clip_dual": None,
            "aggregation": "token-mean",
            "kl": {"where": "reward", "estimator": "k1", "coef": 0.02},
        },
        "rollout": {"prompts": 512, "samples": 1},
        "update": {
            "mini_batches": 8,
            "ema": 0.992,
            "optimizer": {"lr": 1e-6, "schedule": {"kind": "constant", "warmup_steps": 80}},
        },
        "critic": {"init": "reward_model", "clip": 0.2, "optimizer": {"lr": 9e-6}},
        "ptx": {"coef": 27.8, "sequences_per_sample": 8},
    },
    # GRPO arXiv 2402.03300 eq. 3 (sequence mean of token means); KL and schedule: AlphaApollo's
    # training page.
    "grpo": {
        "algorithm": {
            "advantage": "grpo",
            "norm_by_std": True,
            "ratio_level": "token",
            "clip_low": 0.2,
            "clip_high": 0.2,
            "clip_dual": 3.0,
            "aggregation": "seq-mean-token-mean",
            "kl": {"where": "loss", "estimator": "k3", "coef": 0.01},
        },
        "rollout": {"samples": 8},
        "update": {
            "optimizer": {
                "lr": 1e-6,
                "weight_decay": 0.01,
                "schedule": {"kind": "cosine", "warmup_ratio": 0.1},
            }
        },
    },
    # REINFORCE leave-one-out arXiv 2402.14740 eq. 8, with verl's token-level clip.
    "rloo": {
        "algorithm": {
            "advantage": "rloo",
            "clip_low": 0.2,
            "clip_high": 0.2,
            "clip_dual": 3.0,
            "aggregation": "token-mean",
            "kl": {"where": "none"},
        },
        "rollout": {"samples": 8},
        "update": {"optimizer": {"lr": 1e-6}},
    },
    # ReMax arXiv 2310.10505: the baseline is the reward of the prompt's greedy answer.
    "remax": {
        "algorithm": {
            "advantage": "remax",
            "clip_low": 0.2,
            "clip_high": 0.2,
            "clip_dual": 3.0,
            "aggregation": "token-mean",
            "kl": {"where": "none"},
        },
        "rollout": {"samples": 1, "greedy_baseline": True},
        "update": {"optimizer": {"lr": 1e-6}},
    },
    # DAPO arXiv 2503.14476: 512 x 16, 16 updates, warm-up of 20 rollout steps. The reward is
    # +1/-1: reward.functions[0].weight 2, reward.offset -1. Dual clip and decay: its verl script.
    "dapo": {
        "algorithm": {
            "advantage": "grpo",
            "norm_by_std": True,
            "clip_low": 0.2,
            "clip_high": 0.28,
            "clip_dual": 10.0,
            "aggregation": "token-mean",
            "kl": {"where": "none"},
            "dynamic_sampling": {"metric": "accuracy", "batch_factor": 3, "max_rounds": 10},
            "overlong": {},
        },
        "rollout": {"prompts": 512, "samples": 16, "max_new_tokens": 20480},
        "update": {
            "mini_batches": 16,
            "optimizer": {
                "lr": 1e-6,
                "weight_decay": 0.1,
                "schedule": {"kind": "constant", "warmup_steps": 320},
            },
        },
    },
    # GSPO arXiv 2507.18071 section 5.1: sequence ratio, 3e-4 / 4e-4, four mini-batches.
    "gspo": {
        "algorithm": {
            "advantage": "grpo",
            "norm_by_std": True,
            "ratio_level": "sequence",
            "clip_low": 3e-4,
            "clip_high": 4e-4,
            "clip_dual": None,
            "aggregation": "seq-mean-token-mean",
            "kl": {"where": "none"},
        },
        "rollout": {"samples": 8},
        "update": {"mini_batches": 4, "optimizer": {"lr": 1e-6}},
    },
    # GEPO arXiv 2508.17850 and its official code: no std, sampler log-probs, constant rate.
    "gepo": {
        "algorithm": {
            "advantage": "grpo",
            "norm_by_std": False,
            "ratio_level": "group",
            "clip_low": 0.2,
            "clip_high": 0.2,
            "clip_dual": None,
            "aggregation": "seq-mean-token-mean",
            "kl": {"where": "none"},
        },
        "rollout": {"samples": 8},
        "update": {
            "optimizer": {"lr": 1e-6, "schedule": {"kind": "constant", "warmup_ratio": 0.03}}
        },
    },
    # VAPO arXiv 2504.05118 table 1: decoupled, length-adaptive GAE, 50 steps of value warm-up.
    "vapo": {
        "algorithm": {
            "advantage": "gae",
            "gae": {"gamma": 1.0, "lam_critic": 1.0, "length_adaptive_alpha": 0.05},
            "clip_low": 0.2,
            "clip_high": 0.28,
            "clip_dual": None,
            "aggregation": "token-mean",
            "kl": {"where": "none"},
            "positive_nll": {"coef": 0.1},
        },
        "rollout": {"prompts": 512, "samples": 16},
        "update": {"mini_batches": 16, "optimizer": {"lr": 1e-6}},
        "critic": {"warmup_iterations": 50, "clip": 0.5, "optimizer": {"lr": 2e-6}},
    },
}

# Of ``preference.algorithm``.
PREFERENCE_PRESETS: dict[str, dict[str, Any]] = {
    # DPO arXiv 2305.18290 App. B: beta .1, batch 64, lr 1e-6, linear warm-up; decay: TRL's.
    "dpo": {"beta": 0.1, "batch_size": 64, "optimizer": {"lr": 1e-6}},
    # KTO arXiv 2402.01306: beta .1, batch 32; lr: TRL's, which advises 5e-7 to 5e-6.
    "kto": {"beta": 0.1, "batch_size": 32, "optimizer": {"lr": 1e-6}},
}

# A key -> the one beside it that would take precedence, though it was set earlier.
DISPLACES = {"warmup_ratio": "warmup_steps"}


def overlay(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``values`` over it, mapping by mapping; anything else is replaced.

    A ``kl`` with ``where`` replaces the one in ``base``: a preset's coefficient for the loss has no
    meaning for the reward. What a key displaces (``DISPLACES``) is removed from ``base``.
    """
    displaced = {DISPLACES[key] for key in values if key in DISPLACES}
    merged = {key: value for key, value in base.items() if key not in displaced}
    for key, value in values.items():
        under = merged.get(key)
        if isinstance(under, Mapping) and isinstance(value, Mapping):
            moved = key == "kl" and value.get("where", under.get("where")) != under.get("where")
            merged[key] = dict(value) if moved else overlay(under, value)
        else:
            merged[key] = value
    return merged
