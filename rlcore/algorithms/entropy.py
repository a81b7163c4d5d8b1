"""Entropy of the token distribution."""

import torch


def categorical_entropy(log_softmax: torch.Tensor) -> torch.Tensor:
    """Return H [...] in nats from finite log-probabilities [..., vocabulary].

    Logits are divided by the temperature beforehand: it is the entropy of what is sampled from.
    """
    return -(log_softmax.exp() * log_softmax).sum(-1)
