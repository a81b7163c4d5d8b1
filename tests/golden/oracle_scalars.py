"""What verl, TRL and torch say about KL forms, entropy, the overlong penalty and preferences."""

import importlib
from types import SimpleNamespace

import numpy as np
import torch
from batches import (
    KL_HORIZON,
    KL_START,
    KL_TARGET,
    LogitsBatch,
    PreferenceBatch,
    ScalarBatch,
    TokenBatch,
)

algos = importlib.import_module("verl.trainer.ppo.core_algos")
rewards = importlib.import_module("trl.rewards")
trl_utils = importlib.import_module("trl.trainer.utils")
RewardTrainer = importlib.import_module("trl.trainer.reward_trainer").RewardTrainer

Outputs = dict[str, np.ndarray]
KL_ESTIMATORS = ("k1", "abs", "k2", "k3", "k1+", "k3+")


def kl(batch: TokenBatch, number: int) -> Outputs:
    """verl's estimators per token: value, and gradient of their sum."""
    mask = batch.shape.mask
    outputs = {}
    for name in KL_ESTIMATORS:
        leaf = torch.from_numpy(batch.logprobs[mask]).requires_grad_()
        value = algos.kl_penalty(leaf, torch.from_numpy(batch.ref_logprobs[mask]), name)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
        outputs |= {f"{name}/value": value.detach().numpy(), f"{name}/grad": gradient.numpy()}
    return outputs


def kl_full(batch: LogitsBatch, number: int) -> Outputs:
    """torch.distributions' KL of two categoricals, and its gradient on the policy's logits (verl
    documents "full" and does not implement it)."""
    leaf = torch.from_numpy(batch.logits).requires_grad_()
    policy = torch.distributions.Categorical(logits=leaf)
    reference = torch.distributions.Categorical(logits=torch.from_numpy(batch.ref_logits))
    value = torch.distributions.kl_divergence(policy, reference)
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return {"value": value.detach().numpy(), "grad": gradient.numpy().ravel()}


def entropy(batch: LogitsBatch, number: int) -> Outputs:
    """TRL's entropy from logits."""
    return {"value": trl_utils.entropy_from_logits(torch.from_numpy(batch.logits)).numpy()}


def overlong(batch: ScalarBatch, number: int) -> Outputs:
    """TRL's soft overlong punishment (DAPO eq. 13)."""
    penalty = rewards.get_soft_overlong_punishment(batch.max_tokens, batch.cache_tokens)
    answers = [[0] * int(length) for length in batch.lengths]
    return {"penalty": np.array(penalty(completion_ids=answers), dtype=np.float64)}


def controller(batch: ScalarBatch, number: int) -> Outputs:
    """verl's adaptive KL coefficient after one measurement."""
    adaptive = algos.AdaptiveKLController(KL_START, KL_TARGET, KL_HORIZON)
    adaptive.update(batch.kl, batch.num_sequences)
    return {"coef": np.array([adaptive.value])}


class _Scores(SimpleNamespace):
    """The reward model's forward: chosen scores, then rejected ones, as TRL's collator stacks."""

    training = False

    def __call__(self, use_cache: bool) -> SimpleNamespace:
        return SimpleNamespace(logits=self.logits)


def preference(batch: PreferenceBatch, number: int) -> Outputs:
    """TRL RewardTrainer's loss over all untied pairs of a prompt, averaged over prompts with any
    (InstructGPT eq. 1: each prompt's pairs count as one example)."""
    leaf = torch.from_numpy(batch.scores).requires_grad_()
    losses = []
    for prompt in np.unique(batch.group_ids):
        rows = np.flatnonzero(batch.group_ids == prompt)
        better = batch.quality[rows][:, None] > batch.quality[rows][None, :]
        chosen, rejected = (rows[side] for side in np.nonzero(better))
        if len(chosen) == 0:
            continue
        scores = leaf[torch.from_numpy(np.concatenate([chosen, rejected]))]
        identity = SimpleNamespace(gather=lambda x: x, gather_for_metrics=lambda x: x)
        keys = ("num_tokens", "min_reward", "mean_reward", "max_reward", "accuracy", "margin")
        model = _Scores(logits=scores[:, None])
        state = SimpleNamespace(
            model=model,
            args=SimpleNamespace(center_rewards_coefficient=None),
            accelerator=identity,
            _metrics={"eval": {key: [] for key in keys}},
            _total_train_tokens=0,
        )
        losses.append(RewardTrainer.compute_loss(state, model, {}))
    loss = torch.stack(losses).mean()
    (gradient,) = torch.autograd.grad(loss, leaf)
    return {"loss": loss.detach().reshape(1).numpy(), "grad": gradient.numpy()}
