import numpy as np
import pytest
import torch

from rlcore.algorithms.correction import importance_weights
from rlcore.algorithms.kl import kl_estimate
from rlcore.algorithms.policy_loss import clipped_surrogate, importance_ratio
from schemas.errors import UserError


def loss_of(ratio: float, advantage: float, *, low=0.2, high=0.2, dual=None) -> float:
    return float(
        clipped_surrogate(
            torch.tensor([ratio], dtype=torch.float64),
            torch.tensor([advantage], dtype=torch.float64),
            clip_low=low,
            clip_high=high,
            clip_dual=dual,
        ).loss
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.5, 1, -1.2), (0.5, 1, -0.5), (0.5, -1, 0.8), (1.5, -1, 1.5)],
)
def test_clipped_surrogate(ratio, advantage, expected):
    """SPEC A2."""
    assert loss_of(ratio, advantage) == pytest.approx(expected, abs=1e-12)


def test_clip_higher_and_dual_clip():
    """SPEC A8, A3."""
    assert loss_of(1.5, 1, high=0.28) == pytest.approx(-1.28)
    assert loss_of(1.25, 1, high=0.28) == pytest.approx(-1.25)
    assert loss_of(5.0, -1, dual=3.0) == pytest.approx(3.0)
    assert loss_of(5.0, -1) == pytest.approx(5.0)
    assert loss_of(5.0, 1, dual=3.0) == pytest.approx(-1.2)


def test_dual_clip_stops_the_gradient_of_runaway_ratios():
    for value, expected in [(2.0, 1.0), (3.5, 0.0)]:
        ratio = torch.tensor([value], requires_grad=True)
        clipped_surrogate(
            ratio, torch.tensor([-1.0]), clip_low=0.2, clip_high=0.2, clip_dual=3.0
        ).loss.sum().backward()
        assert ratio.grad is not None
        assert float(ratio.grad) == expected


def test_what_is_reported_as_clipped():
    ratio = torch.tensor([1.5, 0.5, 0.5, 5.0, 1.0])
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0])
    found = clipped_surrogate(ratio, advantages, clip_low=0.2, clip_high=0.2, clip_dual=3.0)
    assert found.clipped.tolist() == [True, False, True, False, False]
    assert found.outside_low.tolist() == [False, False, True, False, False]
    assert found.clipped_dual.tolist() == [False, False, False, True, False]


def test_ratio_stays_finite_for_a_policy_far_away():
    ratio = importance_ratio("token", torch.tensor([0.0, -500.0]), torch.tensor([-500.0, 0.0]))
    assert torch.isfinite(ratio).all()
    assert ratio[0] == torch.tensor(20.0).exp()


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("k1", 0.1), ("abs", 0.1), ("k2", 0.005), ("k3", 0.00483742)],
)
def test_kl_estimates(estimator, expected):
    """SPEC K1; the straight-through form shows the same value."""
    logprobs = torch.tensor([-1.0], dtype=torch.float64)
    assert float(kl_estimate(logprobs, logprobs - 0.1, estimator)) == pytest.approx(expected, 1e-6)
    if estimator in ("k1", "k3"):
        found = kl_estimate(logprobs, logprobs - 0.1, f"{estimator}+")
        assert float(found) == pytest.approx(expected, 1e-6)


def test_kl_estimates_are_bounded():
    far = kl_estimate(torch.tensor([-1000.0]), torch.tensor([0.0]), "k3")
    assert float(far) == 10.0


def expected_gradient(estimator: str) -> np.ndarray:
    """Gradient of E_{x ~ policy}[estimate] with samples held fixed: a batch average's limit."""
    logits = torch.log(torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)).requires_grad_()
    reference = torch.log(torch.tensor([1 / 3] * 3, dtype=torch.float64))
    logprobs = torch.log_softmax(logits, 0)
    (logprobs.exp().detach() * kl_estimate(logprobs, reference, estimator)).sum().backward()
    assert logits.grad is not None
    return logits.grad.numpy()


def test_only_k2_has_the_gradient_of_the_kl():
    """SPEC K2: as a loss k1 does nothing and k3 follows the reverse KL; k2 and + are right."""
    logits = torch.log(torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)).requires_grad_()
    logprobs = torch.log_softmax(logits, 0)
    (logprobs.exp() * (logprobs + np.log(3.0))).sum().backward()
    assert logits.grad is not None
    exact = logits.grad.numpy()
    np.testing.assert_allclose(expected_gradient("k1"), 0.0, atol=1e-12)
    for estimator in ("k2", "k1+", "k3+"):
        np.testing.assert_allclose(expected_gradient(estimator), exact, atol=1e-12)
    reverse = np.array([0.6, 0.3, 0.1]) - 1 / 3
    np.testing.assert_allclose(expected_gradient("k3"), reverse, atol=1e-12)


def test_truncated_importance_weights():
    old = torch.log(torch.tensor([0.5, 0.9, 0.2]))
    sampler = torch.log(torch.tensor([0.25, 0.1, 0.4]))
    rows = torch.tensor([0, 0, 1])
    token = importance_weights(old, sampler, rows, level="token", cap=2.0)
    np.testing.assert_allclose(token, [2.0, 2.0, 0.5], rtol=1e-6)
    sequence = importance_weights(old, sampler, rows, level="sequence", cap=100.0)
    np.testing.assert_allclose(sequence, [18.0, 18.0, 0.5], rtol=1e-5)
    assert importance_weights(old, sampler, rows, level="none", cap=2.0).tolist() == [1, 1, 1]


def test_unknown_names_are_told_the_nearest():
    one = torch.zeros(1)
    with pytest.raises(UserError, match="did you mean 'k3'"):
        kl_estimate(one, one, "k33")
    with pytest.raises(UserError, match="did you mean 'token'"):
        importance_ratio("tokens", one, one)
    with pytest.raises(UserError, match="did you mean 'sequence'"):
        importance_weights(one, one, one.long(), level="sequences", cap=1.0)
