"""Scores of logits in one pass are those of log_softmax, with their gradients."""

import pytest
import torch

from rlcore.models.softmax_scores import SoftmaxScores, serves

T, V = 37, 101


def _logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(T, V, generator=torch.Generator().manual_seed(seed)) * 5


IDS = torch.arange(T) * 7 % V


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
@pytest.mark.parametrize("entropy_grad", [None, False, True])
def test_scores_and_gradients(temperature: float, entropy_grad: bool | None) -> None:
    ours, exact = _logits().requires_grad_(), _logits().double().requires_grad_()
    logprobs, entropies = SoftmaxScores.apply(ours * 1.0, IDS, temperature, entropy_grad)
    log_softmax = (exact / temperature).log_softmax(-1)
    expected = log_softmax.gather(1, IDS[:, None])[:, 0]
    expected_entropies = -(log_softmax.exp() * log_softmax).sum(-1)
    torch.testing.assert_close(logprobs.double(), expected, rtol=1e-5, atol=1e-5)
    loss, expected_loss = (logprobs * 3.0).sum(), (expected * 3.0).sum()
    if entropy_grad is None:
        assert entropies.shape == (0,)
    else:
        torch.testing.assert_close(entropies.double(), expected_entropies, rtol=1e-5, atol=1e-5)
        assert entropies.requires_grad is entropy_grad
    if entropy_grad:
        loss = loss - (entropies * torch.linspace(0, 1, T)).sum()
        expected_loss = expected_loss - (expected_entropies * torch.linspace(0, 1, T)).sum()
    loss.backward()
    expected_loss.backward()
    assert ours.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(ours.grad.double(), exact.grad, rtol=1e-4, atol=1e-6)


def test_log_probs_do_not_depend_on_what_else_is_wanted() -> None:
    plain, _ = SoftmaxScores.apply(_logits(), IDS, 1.0, None)
    for entropy_grad in (False, True):
        for wants in (False, True):
            logits = _logits().requires_grad_(wants)
            found, _ = SoftmaxScores.apply(logits, IDS, 1.0, entropy_grad)
            assert torch.equal(found, plain)


def test_a_graph_is_walked_once() -> None:
    logprobs, _ = SoftmaxScores.apply(_logits().requires_grad_() * 1.0, IDS, 1.0, None)
    logprobs.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logprobs.sum().backward()


def test_what_is_served() -> None:
    assert serves(_logits())
    assert not serves(_logits().bfloat16())
    assert not serves(_logits()[:0])
