"""KL forms, entropy, the overlong penalty and preferences against verl, TRL and torch, to 1e-6.

1,000 random batches each; ``VERSIONS.json`` names the function of the library.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from rlcore.algorithms.kl import adaptive_coef, categorical_entropy, full_kl, kl_estimate
from rlcore.algorithms.losses import pair_weights, pairwise_loss
from rlcore.algorithms.overlong import overlong_penalty
from tests.golden import batches as made
from tests.golden.comparison import assert_golden, family, tokens

OF_VERL = ("k1", "abs", "k2", "k3", "k1+", "k3+")


@pytest.mark.parametrize("name", OF_VERL)
def test_kl_estimates(name: str) -> None:
    """Value and gradient; the straight-through forms have k2's."""
    leaf = tokens().field("logprobs").requires_grad_()
    value = kl_estimate(leaf, tokens().field("ref_logprobs"), name)
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    assert_golden(f"kl/{name}/value", tokens().split(value))
    assert_golden(f"kl/{name}/grad", tokens().split(gradient))


def by_batch(of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> tuple[list, list]:
    """Values and gradients on the logits of ``of(log_softmax, ref_log_softmax)``."""
    values, gradients = [], []
    for batch in family("logits"):
        leaf = torch.from_numpy(batch.logits).requires_grad_()
        value = of(leaf.log_softmax(-1), torch.from_numpy(batch.ref_logits).log_softmax(-1))
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
        values.append(value.detach().numpy())
        gradients.append(gradient.numpy())
    return values, gradients


def test_full_kl() -> None:
    values, gradients = by_batch(full_kl)
    assert_golden("kl-full/value", values)
    assert_golden("kl-full/grad", gradients)


def test_entropy() -> None:
    values, _ = by_batch(lambda log_softmax, _: categorical_entropy(log_softmax))
    assert_golden("entropy/value", values)


def test_adaptive_kl_coefficient() -> None:
    coefs = [
        adaptive_coef(
            made.KL_START,
            batch.kl,
            target=made.KL_TARGET,
            num_sequences=batch.num_sequences,
            horizon=made.KL_HORIZON,
        )
        for batch in family("scalar")
    ]
    assert_golden("adaptive-kl/coef", [np.array([coef]) for coef in coefs])


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_overlong_penalty(factor: float) -> None:
    ours = [
        overlong_penalty(
            batch.lengths,
            max_tokens=batch.max_tokens,
            cache_tokens=batch.cache_tokens,
            factor=factor,
        )
        for batch in family("scalar")
    ]
    assert_golden("overlong/penalty", [penalty / factor for penalty in ours])


def test_preference_loss() -> None:
    """All pairs of a prompt weigh together as much as those of any other; ties make none."""
    losses, gradients = [], []
    for batch in family("preference"):
        ranks = batch.quality.max() - batch.quality  # ours: lower is better
        leaf = torch.from_numpy(batch.scores).requires_grad_()
        weights = pair_weights(ranks, batch.group_ids)
        loss = pairwise_loss(leaf, *map(torch.from_numpy, (ranks, batch.group_ids, weights)))
        (gradient,) = torch.autograd.grad(loss, leaf)
        losses.append(loss.detach().numpy())
        gradients.append(gradient.numpy())
    assert_golden("preference/loss", losses)
    assert_golden("preference/grad", gradients)
