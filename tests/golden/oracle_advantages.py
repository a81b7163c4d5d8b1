"""What verl says about advantages, returns and token rewards, batch by batch, in float64.

Rows that could not be scored are taken out before verl sees them: it has no such notion.
The score is on the last policy token of its row (verl's own placement looks at the attention mask
and loses the reward of an episode that ends with a tool, so it is not used).
"""

import importlib
from types import SimpleNamespace

import numpy as np
import torch
from batches import (
    DECOUPLED_SETTINGS,
    GAE_SETTINGS,
    KL_COEF,
    KL_HORIZON,
    KL_TARGET,
    CriticBatch,
    GroupBatch,
    Shape,
    setting,
)

algos = importlib.import_module("verl.trainer.ppo.core_algos")
trainer = importlib.import_module("verl.trainer.ppo.ray_trainer")
protocol = importlib.import_module("verl.protocol")

Outputs = dict[str, np.ndarray]


def token_scores(shape: Shape, scores: np.ndarray) -> np.ndarray:
    """[rows, longest]: the score on the row's last policy token."""
    matrix = np.zeros(shape.cells.shape)
    last = shape.cells.shape[1] - 1 - np.argmax(shape.padded_mask[:, ::-1], axis=1)
    matrix[np.arange(len(scores)), last] = np.nan_to_num(scores)
    return matrix


def _of_rows(shape: Shape, kept: np.ndarray, matrix: torch.Tensor) -> np.ndarray:
    """[policy tokens] of all rows from a matrix of the kept ones; 0 for the others."""
    full = np.zeros(shape.cells.shape)
    full[kept] = matrix.numpy()
    return full[shape.padded_mask]


def _per_row(shape: Shape, kept: np.ndarray, matrix: torch.Tensor) -> np.ndarray:
    """[rows] from advantages that are one number per row, broadcast over its mask."""
    mask = shape.padded_mask[kept]
    values = np.zeros(len(kept))
    values[kept] = (matrix.numpy() * mask).sum(1) / mask.sum(1)
    assert np.allclose(matrix.numpy()[mask], np.repeat(values[kept], mask.sum(1)), atol=1e-12)
    return values


def _critic_inputs(batch: CriticBatch) -> tuple[np.ndarray, list[torch.Tensor]]:
    """Which rows are scorable, and their rewards, values and mask."""
    kept = ~np.isnan(batch.scores)
    rewards = token_scores(batch.shape, batch.scores)
    if batch.token_kl is not None:
        rewards = rewards - batch.shape.padded(batch.token_kl) * batch.shape.padded_mask
    matrices = (rewards, batch.shape.padded(batch.values), batch.shape.padded_mask * 1.0)
    return kept, [torch.from_numpy(matrix[kept]) for matrix in matrices]


def gae(batch: CriticBatch, number: int) -> Outputs:
    """verl whitens what it returns; its raw advantages are returns - values."""
    kept, (rewards, values, mask) = _critic_inputs(batch)
    gamma, lam = setting(GAE_SETTINGS, number)
    advantages, returns = algos.compute_gae_advantage_return(rewards, values, mask, gamma, lam)
    return {
        "advantages": _of_rows(batch.shape, kept, advantages),
        "returns": _of_rows(batch.shape, kept, returns),
    }


def gae_decoupled(batch: CriticBatch, number: int) -> Outputs:
    """verl's GAE twice, as VAPO asks: one lambda for the critic's returns, 1 - 1/(alpha l) per row
    for the policy (arXiv 2504.05118 section 4.2, clamped to [0, 1]; verl takes one per row)."""
    kept, (rewards, values, mask) = _critic_inputs(batch)
    gamma, lam_critic, alpha = setting(DECOUPLED_SETTINGS, number)
    lam = torch.clamp(1.0 - 1.0 / (alpha * mask.sum(1)), 0.0, 1.0)
    function = algos.compute_gae_advantage_return
    advantages, policy_returns = function(rewards, values, mask, gamma, lam)
    _, returns = function(rewards, values, mask, gamma, lam_critic)
    return {
        "advantages": _of_rows(batch.shape, kept, advantages),
        "raw": _of_rows(batch.shape, kept, policy_returns - values),
        "returns": _of_rows(batch.shape, kept, returns),
    }


def remax(batch: CriticBatch, number: int) -> Outputs:
    """Return to go minus the greedy answer's score."""
    kept, (rewards, _, mask) = _critic_inputs(batch)
    baselines = torch.from_numpy(batch.baselines[kept])
    advantages, _ = algos.compute_remax_outcome_advantage(rewards, baselines, mask)
    return {"advantages": _of_rows(batch.shape, kept, advantages)}


def reinforce_plus_plus(batch: CriticBatch, number: int) -> Outputs:
    """Discounted return to go, whitened over the batch."""
    kept, (rewards, _, mask) = _critic_inputs(batch)
    config = SimpleNamespace(gamma=setting(GAE_SETTINGS, number)[0])
    function = algos.compute_reinforce_plus_plus_outcome_advantage
    advantages, _ = function(rewards, mask, config=config)
    return {"advantages": _of_rows(batch.shape, kept, advantages)}


def _group_inputs(batch: GroupBatch) -> tuple[np.ndarray, torch.Tensor, torch.Tensor, np.ndarray]:
    """Which rows are scorable, and their rewards, mask and group ids."""
    kept = ~np.isnan(batch.scores)
    rewards = token_scores(batch.shape, batch.scores)
    if batch.has_kl:
        kl = batch.shape.padded(batch.logprobs - batch.ref_logprobs)
        rewards = rewards - KL_COEF * kl * batch.shape.padded_mask
    mask = torch.from_numpy(batch.shape.padded_mask[kept] * 1.0)
    return kept, torch.from_numpy(rewards[kept]), mask, batch.group_ids[kept]


def grpo(batch: GroupBatch, number: int) -> Outputs:
    """With the division by the group's standard deviation, and without (Dr.GRPO, GEPO)."""
    kept, rewards, mask, index = _group_inputs(batch)
    normed, plain = (
        algos.compute_grpo_outcome_advantage(
            rewards.clone(), mask, index, norm_adv_by_std_in_grpo=norm
        )[0]
        for norm in (True, False)
    )
    return {
        "advantages": _per_row(batch.shape, kept, normed),
        "centred": _per_row(batch.shape, kept, plain),
    }


def rloo(batch: GroupBatch, number: int) -> Outputs:
    """Leave-one-out; verl's two versions must agree before either is believed."""
    kept, rewards, mask, index = _group_inputs(batch)
    loop, _ = algos.compute_rloo_outcome_advantage(rewards.clone(), mask, index)
    vectorized, _ = algos.compute_rloo_vectorized_outcome_advantage(rewards, mask, index)
    assert torch.allclose(loop, vectorized, atol=1e-12)
    return {"advantages": _per_row(batch.shape, kept, loop)}


def reinforce_plus_plus_baseline(batch: GroupBatch, number: int) -> Outputs:
    """Group mean subtracted, then whitened over the tokens of the batch."""
    kept, rewards, mask, index = _group_inputs(batch)
    function = algos.compute_reinforce_plus_plus_baseline_outcome_advantage
    advantages, _ = function(rewards.clone(), mask, index)
    return {"advantages": _per_row(batch.shape, kept, advantages)}


def kl_in_reward(batch: GroupBatch, number: int) -> Outputs:
    """verl's trainer step: token rewards, the batch's KL, and the coefficient after it."""
    shape = batch.shape
    controller = algos.AdaptiveKLController(KL_COEF, KL_TARGET, KL_HORIZON)
    tensors = {
        "response_mask": shape.padded_mask * 1.0,
        "token_level_scores": token_scores(shape, batch.scores),
        "old_log_probs": shape.padded(batch.logprobs),
        "ref_log_prob": shape.padded(batch.ref_logprobs),
    }
    data = protocol.DataProto.from_dict(
        tensors={name: torch.from_numpy(matrix) for name, matrix in tensors.items()}
    )
    data, metrics = trainer.apply_kl_penalty(data, controller, kl_penalty="kl")
    rewards = data.batch["token_level_rewards"].numpy()
    return {
        "rewards": rewards[shape.padded_mask],
        "kl": np.array([metrics["actor/reward_kl_penalty"]]),
        "coef": np.array([controller.value]),
    }
