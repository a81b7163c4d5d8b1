"""Entropy is that of the distribution sampled from."""

import numpy as np
import pytest
import torch

from rlcore.algorithms.kl import categorical_entropy


def test_entropy_of_a_categorical_in_closed_form():
    log_softmax = torch.log(torch.tensor([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]]))
    np.testing.assert_allclose(
        categorical_entropy(log_softmax), [1.5 * np.log(2), np.log(3)], rtol=1e-6
    )


def test_entropy_of_a_certain_token_is_zero_and_its_gradient_finite():
    """A policy that is sure of a token must not turn the update into NaN."""
    logits = torch.tensor([[80.0, 0.0, -80.0]], requires_grad=True)
    entropy = categorical_entropy(torch.log_softmax(logits, -1))
    entropy.sum().backward()
    assert float(entropy.detach()) == pytest.approx(0.0, abs=1e-30)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_gradient_of_the_entropy_points_to_the_even_distribution():
    """The wrong sign would make an exploration bonus out of certainty."""
    logits = torch.tensor([[1.0, 0.0, 0.0]], requires_grad=True)
    categorical_entropy(torch.log_softmax(logits, -1)).sum().backward()
    assert logits.grad is not None
    assert logits.grad[0, 0] < 0 < logits.grad[0, 1] == logits.grad[0, 2]
