"""Entropy of the token distribution."""

import torch


def categorical_entropy(log_softmax: torch.Tensor) -> torch.Tensor:
    """Return H [...] in nats from finite log-probabilities [..., vocabulary].

    Temperature belongs into the logits beforehand (SPEC L8: the entropy of what is sampled from).
    """
    return -(log_softmax.exp() * log_softmax).sum(-1)
