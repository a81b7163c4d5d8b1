import numpy as np
import pytest
import torch

from rlcore.algorithms.losses import clipped_value_loss, explained_variance


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_by_hand():
    """Clip .5 around V_old = 0: V = 1 counts as .5. Return 2: max(1, 2.25) / 2, bounded;
    return 0: max(1, .25) / 2, not bounded; V = .3 lies within the clip: .49 / 2."""
    loss, clipped = clipped_value_loss(
        tensor(1, 1, 0.3), tensor(2, 0, 1), tensor(0, 0, 0), clip=0.5
    )
    np.testing.assert_allclose(loss, [1.125, 0.5, 0.245], atol=1e-12)
    assert clipped.tolist() == [True, False, False]


def test_without_clip_it_is_half_the_square():
    loss, clipped = clipped_value_loss(tensor(1, 3), tensor(2, 0), tensor(9, 9), clip=None)
    assert loss.tolist() == [0.5, 4.5]
    assert clipped.tolist() == [False, False]


@pytest.mark.parametrize("clip", [None, 0.5])
def test_gradient_agrees_with_finite_differences(clip):
    torch.manual_seed(0)
    values, returns, old = (torch.randn(16, dtype=torch.float64) for _ in range(3))
    values.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda values: clipped_value_loss(values, returns, old, clip)[0], values
    )


def test_a_clipped_value_has_no_gradient():
    """The critic may not run away from the rollout's values within one update phase."""
    values = tensor(1.0, 0.3).requires_grad_()
    clipped_value_loss(values, tensor(2, 2), tensor(0, 0), 0.5)[0].sum().backward()
    assert values.grad is not None
    np.testing.assert_allclose(values.grad, [0.0, -1.7], atol=1e-12)


def test_explained_variance_by_hand():
    """Residuals [1, -1, 0] have variance 1, returns [1, 2, 3] have 1."""
    returns = np.array([1.0, 2.0, 3.0])
    assert explained_variance(returns, returns) == pytest.approx(1.0)
    assert explained_variance(returns - np.array([1.0, -1.0, 0.0]), returns) == pytest.approx(
        1 - 1 / (1 + 1e-5)
    )
    assert explained_variance(np.full(3, 2.0), returns) == pytest.approx(0.0, abs=1e-4)
    assert explained_variance(-returns, returns) == pytest.approx(-3.0, abs=1e-4)


@pytest.mark.parametrize("returns", [[], [1.0], [1.0, 1.0, 1.0], [0.7, np.float32(0.7)]])
def test_nothing_to_explain_is_not_a_perfect_critic(returns):
    """Constant returns give NaN, not 1."""
    assert np.isnan(explained_variance(np.zeros(len(returns)), np.array(returns)))
