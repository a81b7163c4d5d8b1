"""KL(policy || reference): per-token estimates, the exact sum, and the controller of its weight;
the entropy of the token distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def categorical_entropy(log_softmax: torch.Tensor) -> torch.Tensor:
    """Return H [...] in nats from finite log-probabilities [..., vocabulary].

    The logits must already be divided by the temperature, so that this is the entropy of the
    distribution that is sampled from.
    """
    return -(log_softmax.exp() * log_softmax).sum(-1)


LOG_RATIO_LIMIT = 20.0  # |ref - lp| inside exp: keeps the ratio below e^20
K3_LIMIT = 10.0  # nats; bounds one token's share of the loss (verl core_algos.kl_penalty_forward)
ADAPTIVE_CLIP = 0.2  # largest relative error the controller acts on (arXiv 1909.08593 section 2.2)
ESTIMATORS = ("k1", "abs", "k2", "k3", "k1+", "k3+")


def kl_estimate(logprobs: torch.Tensor, ref_logprobs: torch.Tensor, estimator: str) -> torch.Tensor:
    """Return the estimate in nats, of the shape of ``logprobs``. With d = lp - ref:

    k1 = d; abs = |d|; k2 = d^2 / 2; k3 = e^-d + d - 1 (http://joschu.net/blog/kl-approx.html).

    As a *loss* only k2 has the gradient of KL(policy || reference) in expectation: the gradient of
    k1 does not depend on the reference and averages to 0, that of k3 averages to the gradient of
    the reverse KL (arXiv 2506.09477), and that of abs to the gradient of sum_v |policy -
    reference|, twice the total variation. "k1+" and "k3+" therefore have the base value and the
    gradient of k2 (straight through).
    """
    assert estimator in ESTIMATORS, estimator
    if estimator.endswith("+"):
        value = kl_estimate(logprobs.detach(), ref_logprobs, estimator[:-1])
        k2 = kl_estimate(logprobs, ref_logprobs, "k2")
        return value + (k2 - k2.detach())
    difference = logprobs - ref_logprobs
    if estimator == "k1":
        return difference
    if estimator == "abs":
        return difference.abs()
    if estimator == "k2":
        return 0.5 * difference.square()
    negative = (-difference).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (negative.exp() - negative - 1.0).clamp(-K3_LIMIT, K3_LIMIT)


def full_kl(log_softmax: torch.Tensor, ref_log_softmax: torch.Tensor) -> torch.Tensor:
    """Return sum_v pi(v) (log pi(v) - log ref(v)) in nats [...], exact, with its exact gradient.

    Both are finite log-probabilities [..., vocabulary]; pass them in chunks of tokens when the
    vocabulary is large.
    """
    return (log_softmax.exp() * (log_softmax - ref_log_softmax)).sum(-1)


def adaptive_coef(
    coef: float, kl: float, *, target: float, num_sequences: int, horizon: int
) -> float:
    """Return the next coefficient: coef (1 + clip(kl / target - 1, +-.2) num_sequences / horizon).

    Ziegler et al. 2019, arXiv 1909.08593 section 2.2. ``kl`` in nats: mean over sequences of the
    mean over a sequence's policy tokens, in the batch that used ``coef``; ``horizon`` in sequences.
    """
    error = min(max(kl / target - 1.0, -ADAPTIVE_CLIP), ADAPTIVE_CLIP)
    return coef * (1.0 + error * num_sequences / horizon)
