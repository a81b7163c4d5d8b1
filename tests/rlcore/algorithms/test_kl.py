"""KL estimates, their gradients in expectation, the exact sum, and the controller."""

import numpy as np
import pytest
import torch

from rlcore.algorithms.kl import adaptive_coef, full_kl, kl_estimate

# A toy of three logits: a uniform policy, a reference of logits [1, 0, -1].
UNIFORM = torch.full((3,), 1 / 3, dtype=torch.float64)
REFERENCE = torch.softmax(torch.tensor([1.0, 0, -1], dtype=torch.float64), 0)
SKEWED = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("k1", 0.1), ("abs", 0.1), ("k2", 0.005), ("k3", 0.00483742)],
)
def test_kl_estimates(estimator, expected):
    """Values at d = .1; the straight-through form shows the same value."""
    logprobs = torch.tensor([-1.0], dtype=torch.float64)
    assert float(kl_estimate(logprobs, logprobs - 0.1, estimator)) == pytest.approx(expected, 1e-6)
    if estimator in ("k1", "k3"):
        found = kl_estimate(logprobs, logprobs - 0.1, f"{estimator}+")
        assert float(found) == pytest.approx(expected, 1e-6)


def test_kl_estimates_are_bounded():
    far = kl_estimate(torch.tensor([-1000.0]), torch.tensor([0.0]), "k3")
    assert float(far) == 10.0


def expected_gradient(estimator: str, policy: torch.Tensor, reference: torch.Tensor) -> np.ndarray:
    """Gradient of E_{x ~ policy}[estimate] with samples held fixed: a batch average's limit."""
    logits = torch.log(policy).requires_grad_()
    logprobs = torch.log_softmax(logits, 0)
    estimate = kl_estimate(logprobs, torch.log(reference), estimator)
    (logprobs.exp().detach() * estimate).sum().backward()
    assert logits.grad is not None
    return logits.grad.numpy()


def exact_gradient(policy: torch.Tensor, reference: torch.Tensor) -> np.ndarray:
    logits = torch.log(policy).requires_grad_()
    full_kl(torch.log_softmax(logits, 0), torch.log(reference)).backward()
    assert logits.grad is not None
    return logits.grad.numpy()


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("k1", [0.0, 0.0, 0.0]),
        ("k2", [-0.3333, 0.0, 0.3333]),
        ("k3", [-0.3319, 0.0886, 0.2433]),
        ("k1+", [-0.3333, 0.0, 0.3333]),
        ("k3+", [-0.3333, 0.0, 0.3333]),
    ],
)
def test_gradients_in_expectation_by_hand(estimator, expected):
    """A penalty by k1 does nothing, and by k3 pulls in another direction than the KL."""
    found = expected_gradient(estimator, UNIFORM, REFERENCE)
    np.testing.assert_allclose(found, expected, atol=5e-5)


@pytest.mark.parametrize(
    ("policy", "reference"), [(UNIFORM, REFERENCE), (SKEWED, UNIFORM), (SKEWED, REFERENCE)]
)
def test_only_k2_has_the_gradient_of_the_kl(policy, reference):
    """k1 none, k3 that of KL(reference || policy), k2 and the straight-through forms the exact."""
    np.testing.assert_allclose(expected_gradient("k1", policy, reference), 0.0, atol=1e-12)
    exact = exact_gradient(policy, reference)
    for estimator in ("k2", "k1+", "k3+"):
        found = expected_gradient(estimator, policy, reference)
        np.testing.assert_allclose(found, exact, atol=1e-12)
    reverse = policy - reference
    np.testing.assert_allclose(expected_gradient("k3", policy, reference), reverse, atol=1e-12)


@pytest.mark.parametrize(("policy", "reference"), [(SKEWED, UNIFORM), (SKEWED, REFERENCE)])
def test_abs_pulls_by_the_total_variation(policy, reference):
    """A direction towards the reference, so no estimator to be warned of."""
    logits = torch.log(policy).requires_grad_()
    (torch.softmax(logits, 0) - reference).abs().sum().backward()
    found = expected_gradient("abs", policy, reference)
    assert logits.grad is not None
    np.testing.assert_allclose(found, logits.grad, atol=1e-12)
    assert np.abs(found).max() > 0.01


@pytest.mark.parametrize("estimator", ["k1", "abs", "k2", "k3"])
def test_gradients_agree_with_finite_differences(estimator):
    torch.manual_seed(0)
    reference = torch.randn(12, dtype=torch.float64)
    logprobs = torch.randn(12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda lp: kl_estimate(lp, reference, estimator), logprobs)


def test_full_kl_is_the_sum_over_the_vocabulary():
    """Brute force over five tokens, which is the mean of k1 over all samples."""
    torch.manual_seed(0)
    policy, reference = (
        torch.log_softmax(torch.randn(4, 5, dtype=torch.float64), -1) for _ in range(2)
    )
    found = full_kl(policy, reference)
    for position in range(4):
        p, q = policy[position].exp().tolist(), reference[position].exp().tolist()
        brute = sum(pv * np.log(pv / qv) for pv, qv in zip(p, q, strict=True))
        assert float(found[position]) == pytest.approx(brute, abs=1e-12)
    mean_k1 = (policy.exp() * kl_estimate(policy, reference, "k1")).sum(-1)
    torch.testing.assert_close(found, mean_k1, rtol=0, atol=1e-14)
    assert (found > 0).all()
    torch.testing.assert_close(full_kl(policy, policy), torch.zeros(4).double(), rtol=0, atol=1e-15)


def test_full_kl_gradient_agrees_with_finite_differences():
    torch.manual_seed(0)
    reference = torch.log_softmax(torch.randn(3, 5, dtype=torch.float64), -1)
    logits = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda logits: full_kl(torch.log_softmax(logits, -1), reference), logits
    )


def test_adaptive_coefficient_by_hand():
    """The error is clipped at .2 either way, and n counts sequences (arXiv 1909.08593)."""
    step = {"target": 0.1, "num_sequences": 64, "horizon": 10_000}
    assert adaptive_coef(0.001, 0.2, **step) == pytest.approx(0.00100128, abs=1e-15)
    assert adaptive_coef(0.001, 0.0, **step) == pytest.approx(0.00099872, abs=1e-15)
    assert adaptive_coef(0.001, 0.11, **step) == pytest.approx(0.001 * 1.00064, abs=1e-15)
    assert adaptive_coef(0.001, 0.1, **step) == 0.001
