"""Makes the golden tensors again: what verl, TRL and OpenRLHF return for seeded random batches.

Run it in a separate environment with verl 0.9.1, trl 1.16.0, openrlhf 0.11.2 and torch (a CPU build
will do; of what openrlhf depends on, only deepspeed is imported), from the root of this repository:

    python tests/golden/generate.py

It writes ``*.npz`` (numbers only: the outputs; the inputs are ``tests/golden/batches.py`` with seed
20260314) and ``VERSIONS.json`` (packages, seed, what is the oracle of each function, and where we
differ on purpose) next to itself. The same versions write the same bytes.
"""

import json
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import batches
import numpy as np
import oracle_advantages
import oracle_losses
import oracle_scalars

HERE = Path(__file__).parent
PACKAGES = ("verl", "trl", "openrlhf", "torch", "numpy")


@dataclass(frozen=True)
class Oracle:
    """``function(batch, number) -> {output: array}`` over a family of batches."""

    file: str
    family: str
    function: Callable
    source: str


_VERL = "verl.trainer.ppo.core_algos."
ORACLES = {
    "gae": Oracle(
        "advantages", "critic", oracle_advantages.gae, _VERL + "compute_gae_advantage_return"
    ),
    "gae-decoupled": Oracle(
        "advantages",
        "critic",
        oracle_advantages.gae_decoupled,
        _VERL
        + "compute_gae_advantage_return, once with lambda 1 - 1/(alpha l) per row (from arXiv "
        "2504.05118 section 4.2, clamped as in NeMo-RL) and once with the critic's lambda",
    ),
    "remax": Oracle(
        "advantages", "critic", oracle_advantages.remax, _VERL + "compute_remax_outcome_advantage"
    ),
    "reinforce++": Oracle(
        "advantages",
        "critic",
        oracle_advantages.reinforce_plus_plus,
        _VERL + "compute_reinforce_plus_plus_outcome_advantage",
    ),
    "grpo": Oracle(
        "advantages", "group", oracle_advantages.grpo, _VERL + "compute_grpo_outcome_advantage"
    ),
    "rloo": Oracle(
        "advantages",
        "group",
        oracle_advantages.rloo,
        _VERL + "compute_rloo_outcome_advantage, compute_rloo_vectorized_outcome_advantage",
    ),
    "reinforce++-baseline": Oracle(
        "advantages",
        "group",
        oracle_advantages.reinforce_plus_plus_baseline,
        _VERL + "compute_reinforce_plus_plus_baseline_outcome_advantage",
    ),
    "kl-in-reward": Oracle(
        "advantages",
        "group",
        oracle_advantages.kl_in_reward,
        "verl.trainer.ppo.ray_trainer.apply_kl_penalty",
    ),
    "clip-dual": Oracle(
        "losses", "token", oracle_losses.clip_dual, _VERL + "compute_policy_loss_vanilla"
    ),
    "clip": Oracle("losses", "token", oracle_losses.clip, "openrlhf.models.loss.PolicyLoss ppo"),
    "cispo": Oracle("losses", "token", oracle_losses.cispo, _VERL + "compute_policy_loss_cispo"),
    "reinforce": Oracle(
        "losses", "token", oracle_losses.reinforce, _VERL + "compute_policy_loss_reinforce"
    ),
    "gspo": Oracle("losses", "token", oracle_losses.gspo, "openrlhf.models.loss.PolicyLoss gspo"),
    "gspo-token": Oracle(
        "losses", "token", oracle_losses.gspo_token, _VERL + "compute_policy_loss_gspo"
    ),
    "gepo": Oracle(
        "losses",
        "token",
        oracle_losses.gepo,
        "independent torch float64 from arXiv 2508.17850, length-normalised as in the official "
        "code, which is no package (read: HeteroRL_GEPO src/open-r1/online_rl.py at "
        "822b0c3541fda64797d434420176745534543fca)",
    ),
    "value": Oracle("losses", "token", oracle_losses.value, _VERL + "compute_value_loss"),
    "value-unclipped": Oracle(
        "losses", "token", oracle_losses.value_unclipped, "openrlhf.models.loss.ValueLoss"
    ),
    "aggregation": Oracle("losses", "token", oracle_losses.aggregation, _VERL + "agg_loss"),
    "importance-correction": Oracle(
        "losses",
        "token",
        oracle_losses.importance_correction,
        "verl.trainer.ppo.rollout_corr_helper.compute_rollout_correction_weights",
    ),
    "kl": Oracle("scalars", "token", oracle_scalars.kl, _VERL + "kl_penalty"),
    "kl-full": Oracle(
        "scalars", "logits", oracle_scalars.kl_full, "torch.distributions.kl_divergence"
    ),
    "entropy": Oracle(
        "scalars", "logits", oracle_scalars.entropy, "trl.trainer.utils.entropy_from_logits"
    ),
    "overlong": Oracle(
        "scalars", "scalar", oracle_scalars.overlong, "trl.rewards.get_soft_overlong_punishment"
    ),
    "adaptive-kl": Oracle(
        "scalars", "scalar", oracle_scalars.controller, _VERL + "AdaptiveKLController"
    ),
    "preference": Oracle(
        "scalars",
        "preference",
        oracle_scalars.preference,
        "trl.RewardTrainer.compute_loss per prompt, mean over prompts",
    ),
}
RULINGS = {
    "constant groups, groups of one": "ours: exactly 0; verl: rounding noise, the raw score. "
    "Batches hold neither.",
    "unscorable rows": "ours: advantage 0, outside every statistic; the libraries know none. They "
    "are taken out before the oracle sees the batch.",
    "at most one policy token in the batch, constant returns": "ours: no whitening, or exactly 0; "
    "verl raises, or magnifies the 1e-8 in its mean's denominator. Batches hold neither.",
    "reward of an episode that ends in tool tokens": "ours: on the last policy token; verl places "
    "it by the attention mask. The oracle gets it on the last policy token.",
    "rows without a policy token": "ours: no reward, no weight; only the token families hold them, "
    "where verl and OpenRLHF leave them out too.",
    "dual clip": "verl cannot switch it off and its GSPO ignores it; the plain clip is compared "
    "with OpenRLHF.",
    "sequence ratio limits": "verl caps the log-ratio of a sequence at 10, we at 20; batches stay "
    "below 10.",
    "length-adaptive lambda": "the paper's 1 - 1/(alpha l) clamped to [0, 1], not StateSet's "
    "1 - 1/(alpha l + 1).",
    "GEPO": "length-normalised probabilities, expectation per prompt group (official code: per "
    "device batch, which is the group there).",
    "full KL": "verl documents it and raises NotImplementedError.",
    "OpenRLHF KL estimators": "computed in float32 there; verl is the oracle.",
}


def trimmed(values: np.ndarray) -> np.ndarray:
    """Round to 29 bits of mantissa: within 2e-9 of the value, and the zeros compress away."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    return np.ldexp(np.round(mantissa * 2.0**29) / 2.0**29, exponent)


def main() -> None:
    """Write the files and say how large they are."""
    items, digests = {}, {}
    for family, make in batches.FAMILIES.items():
        items[family] = [make(number) for number in range(batches.NUM_BATCHES)]
        digests[family] = batches.digest(family, items[family])
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for name, oracle in ORACLES.items():
        outputs = [oracle.function(item, n) for n, item in enumerate(items[oracle.family])]
        for output in outputs[0]:
            joined = np.concatenate([each[output] for each in outputs])
            assert np.isfinite(joined).all(), f"{name}/{output} is not finite"
            arrays.setdefault(oracle.file, {})[f"{name}/{output}"] = trimmed(joined)
    for file, content in arrays.items():
        path = HERE / f"{file}.npz"
        np.savez_compressed(path, allow_pickle=False, **content)
        print(f"{path.name}: {len(content)} arrays, {path.stat().st_size / 1e6:.2f} MB")
    record = {
        "packages": {name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "seed": batches.SEED,
        "batches": batches.NUM_BATCHES,
        "input_sha256": digests,
        "oracles": {name: oracle.source for name, oracle in ORACLES.items()},
        "rulings": RULINGS,
    }
    (HERE / "VERSIONS.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
