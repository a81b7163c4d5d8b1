"""What verl and OpenRLHF say about token losses: the batch's loss and its gradient, in float64.

verl's dual clip cannot be switched off, so the plain clip comes from OpenRLHF. GEPO has no package
to install: its oracle is written here from the paper (arXiv 2508.17850), apart from our code.
"""

import importlib
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path

import numpy as np
import torch
from batches import (
    CLIPS,
    CORRECTION_CAPS,
    HORIZON,
    MODES,
    SEQUENCE_CLIPS,
    VALUE_CLIPS,
    TokenBatch,
    setting,
)

Outputs = dict[str, np.ndarray]

algos = importlib.import_module("verl.trainer.ppo.core_algos")
correction = importlib.import_module("verl.trainer.ppo.rollout_corr_helper")
ActorConfig = importlib.import_module("verl.workers.config").ActorConfig


def _openrlhf_losses():
    """OpenRLHF's loss module without its package's ``__init__``, which wants flash-attn."""
    top = find_spec("openrlhf")
    assert top is not None
    assert top.submodule_search_locations
    spec = ModuleSpec("openrlhf.models", None, is_package=True)
    spec.submodule_search_locations = [str(Path(top.submodule_search_locations[0]) / "models")]
    sys.modules["openrlhf.models"] = module_from_spec(spec)
    return importlib.import_module("openrlhf.models.loss")


openrlhf = _openrlhf_losses()


def _padded(batch: TokenBatch, flat: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(batch.shape.padded(flat))


def _mask(batch: TokenBatch) -> torch.Tensor:
    return torch.from_numpy(batch.shape.padded_mask * 1.0)


def _with_gradient(
    batch: TokenBatch, field: np.ndarray, loss_of: Callable[[torch.Tensor], torch.Tensor]
) -> Outputs:
    """The scalar loss of a padded leaf, and its gradient on the policy tokens."""
    leaf = _padded(batch, field).requires_grad_()
    loss = loss_of(leaf)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return {"loss": loss.detach().reshape(1).numpy(), "grad": gradient[_mask(batch) > 0].numpy()}


def _config(low: float, high: float, dual: float = 3.0) -> object:
    """verl's own configuration; only the clips matter to a loss."""
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=low,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=dual,
    )
    config.global_batch_info["loss_scale_factor"] = HORIZON
    return config


def clip_dual(batch: TokenBatch, number: int) -> Outputs:
    """PPO's asymmetric clip with the dual clip, under each of verl's aggregations in turn."""
    low, high, dual = setting(CLIPS, number // len(MODES))
    old, advantages = (_padded(batch, f) for f in (batch.far_logprobs, batch.token_advantages))
    return _with_gradient(
        batch,
        batch.logprobs,
        lambda lp: algos.compute_policy_loss_vanilla(
            old, lp, advantages, _mask(batch), setting(MODES, number), _config(low, high, dual)
        )[0],
    )


def clip(batch: TokenBatch, number: int) -> Outputs:
    """OpenRLHF's PPO loss without dual clip, token mean and sequence mean in turn."""
    low, high, _ = setting(CLIPS, number // 2)
    loss = openrlhf.PolicyLoss(low, high, None, token_level_loss=number % 2 == 0)
    old, advantages = (_padded(batch, f) for f in (batch.far_logprobs, batch.token_advantages))
    return _with_gradient(
        batch, batch.logprobs, lambda lp: loss(lp, old, advantages, _mask(batch))[0]
    )


def cispo(batch: TokenBatch, number: int) -> Outputs:
    """Token mean of -sg(clip(ratio)) A lp."""
    low, high, _ = setting(CLIPS, number)
    old, advantages = (_padded(batch, f) for f in (batch.far_logprobs, batch.token_advantages))
    return _with_gradient(
        batch,
        batch.logprobs,
        lambda lp: algos.compute_policy_loss_cispo(
            old, lp, advantages, _mask(batch), "token-mean", _config(low, high)
        )[0],
    )


def reinforce(batch: TokenBatch, number: int) -> Outputs:
    """Sequence mean of the token sum of -A lp."""
    old, advantages = (_padded(batch, f) for f in (batch.old_logprobs, batch.token_advantages))
    return _with_gradient(
        batch,
        batch.logprobs,
        lambda lp: algos.compute_policy_loss_reinforce(
            old, lp, advantages, _mask(batch), "seq-mean-token-sum", _config(0.2, 0.2)
        )[0],
    )


def gspo(batch: TokenBatch, number: int) -> Outputs:
    """OpenRLHF's sequence ratio, its gradient running through the mean; one advantage per row."""
    low, high = setting(SEQUENCE_CLIPS, number)
    loss = openrlhf.PolicyLoss(low, high, None, policy_loss_type="gspo")
    old = _padded(batch, batch.old_logprobs)
    advantages = _padded(batch, batch.row_advantages[batch.shape.rows])
    return _with_gradient(
        batch, batch.logprobs, lambda lp: loss(lp, old, advantages, _mask(batch))[0]
    )


def gspo_token(batch: TokenBatch, number: int) -> Outputs:
    """verl's straight-through sequence ratio; advantages differ within a row."""
    low, high = setting(SEQUENCE_CLIPS, number)
    old, advantages = (_padded(batch, f) for f in (batch.old_logprobs, batch.token_advantages))
    return _with_gradient(
        batch,
        batch.logprobs,
        lambda lp: algos.compute_policy_loss_gspo(
            old, lp, advantages, _mask(batch), "seq-mean-token-mean", _config(low, high)
        )[0],
    )


def gepo(batch: TokenBatch, number: int) -> Outputs:
    """From the paper: p and q are geometric means of token probabilities; E_q[q] of a prompt's
    group weighs q by q itself; w = p / E_q[q]; clipped surrogate, mean over rows with tokens."""
    low, high, _ = setting(CLIPS, number)
    mask, counts = _mask(batch), torch.from_numpy(batch.shape.counts * 1.0)
    filled = counts > 0
    advantages = torch.from_numpy(batch.row_advantages)
    sampler = (_padded(batch, batch.rollout_logprobs) * mask).sum(1) / counts.clamp(min=1)
    expectation = torch.ones_like(sampler)
    for group in np.unique(batch.group_ids[filled.numpy()]):
        members = torch.from_numpy(batch.group_ids == group) & filled
        q = sampler[members].exp()
        expectation[members] = (q / q.sum() * q).sum()
    weights: list[torch.Tensor] = []

    def loss_of(lp: torch.Tensor) -> torch.Tensor:
        w = ((lp * mask).sum(1) / counts.clamp(min=1)).exp() / expectation
        weights.append(w.detach())
        surrogate = torch.min(w * advantages, w.clamp(1 - low, 1 + high) * advantages)
        return -surrogate[filled].mean()

    outputs = _with_gradient(batch, batch.logprobs, loss_of)
    rows = filled.numpy()
    return {
        **outputs,
        "weights": weights[0].numpy()[rows],
        "log_expectation": expectation.log().numpy()[rows],
    }


def value(batch: TokenBatch, number: int) -> Outputs:
    """verl's clipped value loss, token mean."""
    old, returns = (_padded(batch, f) for f in (batch.old_values, batch.returns))
    return _with_gradient(
        batch,
        batch.values,
        lambda values: algos.compute_value_loss(
            values, returns, old, _mask(batch), setting(VALUE_CLIPS, number)
        )[0],
    )


def value_unclipped(batch: TokenBatch, number: int) -> Outputs:
    """OpenRLHF's value loss with the clip off, token mean."""
    old, returns = (_padded(batch, f) for f in (batch.old_values, batch.returns))
    loss = openrlhf.ValueLoss(clip_eps=None)
    return _with_gradient(
        batch, batch.values, lambda values: loss(values, old, returns, _mask(batch))
    )


def aggregation(batch: TokenBatch, number: int) -> Outputs:
    """Every mode of verl on one loss matrix; group-token-mean (DAPO eq. 8, one prompt at a time)
    is verl's token mean of each group, averaged over the groups that hold a token."""
    mask, losses = _mask(batch), _padded(batch, batch.token_advantages)
    outputs = {
        mode: algos.agg_loss(losses, mask, mode, loss_scale_factor=HORIZON).reshape(1).numpy()
        for mode in MODES
    }
    means = []
    for group in np.unique(batch.group_ids[batch.shape.counts > 0]):
        rows = torch.from_numpy(batch.group_ids == group)
        means.append(algos.agg_loss(losses[rows], mask[rows], "token-mean").item())
    return {**outputs, "group-token-mean": np.array([np.mean(means)])}


def importance_correction(batch: TokenBatch, number: int) -> Outputs:
    """verl's truncated importance weights between learner and sampler."""
    log_ratio = _padded(batch, batch.far_logprobs) - _padded(batch, batch.rollout_logprobs)
    cap, mask = setting(CORRECTION_CAPS, number), _mask(batch)
    function = correction.compute_rollout_correction_weights
    return {
        level: function(log_ratio, mask, level, cap)[0][mask > 0].numpy()
        for level in ("token", "sequence")
    }
