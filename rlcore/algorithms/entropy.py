"""Entropy of the token distribution."""

import torch


def categorical_entropy(log_softmax: torch.Tensor) -> torch.Tensor:
    """Return H [...] in nats from finite log-probabilities [..., vocabulary].

    The logits must already be divided by the temperature, so that this is the entropy of the
    distribution that is sampled from.
    """
    return -(log_softmax.exp() * log_softmax).sum(-1)
