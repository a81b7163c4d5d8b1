import numpy as np
import pytest
import torch

from rlcore.algorithms.losses import is_preferred, pair_weights, pairwise_loss


def loss_of(scores, ranks, groups=None) -> float:
    ranks = np.array(ranks)
    groups = np.zeros(len(ranks), dtype=np.int64) if groups is None else np.array(groups)
    weights = pair_weights(ranks, groups)
    return float(
        pairwise_loss(
            torch.tensor(scores, dtype=torch.float64),
            torch.tensor(ranks),
            torch.tensor(groups),
            torch.tensor(weights),
        )
    )


def test_loss_of_a_perfect_ranking_by_hand():
    """Four responses in order, one apart."""
    assert loss_of([2.0, 1, 0, -1], [1, 2, 3, 4]) == pytest.approx(0.207038, abs=1e-6)
    assert loss_of([-1.0, 0, 1, 2], [4, 3, 2, 1]) == pytest.approx(0.207038, abs=1e-6)


def test_loss_of_equal_scores():
    assert loss_of([0.3] * 5, [1, 2, 3, 4, 5]) == pytest.approx(np.log(2), abs=1e-12)


def test_ties_make_no_pair():
    """Ranks 1, 1, 2, 2 leave four pairs of six; margins 2, 1, 1, 0."""
    expected = np.mean(np.log1p(np.exp(-np.array([2.0, 1, 1, 0]))))
    assert loss_of([2.0, 1, 0, 1], [1, 1, 2, 2]) == pytest.approx(expected, abs=1e-12)
    np.testing.assert_allclose(pair_weights(np.array([1, 1, 2, 2]), np.zeros(4)), 0.25)


def test_prompts_weigh_the_same_however_many_pairs_they_have():
    """Mean over prompts of the mean over pairs; a prompt of nothing but ties is no prompt."""
    ranks, groups = [1, 2, 1, 2, 3, 1, 1, 1], [7, 7, 3, 3, 3, 5, 5, 9]
    weights = pair_weights(np.array(ranks), np.array(groups))
    np.testing.assert_allclose(weights, [1 / 2, 1 / 2, 1 / 6, 1 / 6, 1 / 6, 0, 0, 0])
    first = np.log1p(np.exp(-3.0))
    second = np.mean(np.log1p(np.exp(-np.array([1.0, 1, 2]))))
    scores = [3.0, 0, 2, 1, 0, 50, -50, 9]
    assert loss_of(scores, ranks, groups) == pytest.approx((first + second) / 2, abs=1e-12)


def test_split_between_prompts_changes_nothing():
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 5, 30)
    ranks, scores = rng.integers(1, 5, 30), torch.tensor(rng.normal(size=30))
    weights = torch.tensor(pair_weights(ranks, groups))
    fields = (scores, torch.tensor(ranks), torch.tensor(groups), weights)
    parts = [pairwise_loss(*(f[torch.tensor(groups == g)] for f in fields)) for g in range(5)]
    assert float(sum(parts)) == pytest.approx(float(pairwise_loss(*fields)), abs=1e-12)


def test_gradient_agrees_with_finite_differences():
    torch.manual_seed(0)
    ranks, groups = torch.tensor([1, 2, 2, 3, 1, 2]), torch.tensor([0, 0, 0, 0, 4, 4])
    weights = torch.tensor(pair_weights(ranks.numpy(), groups.numpy()))
    scores = torch.randn(6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda scores: pairwise_loss(scores, ranks, groups, weights), scores
    )


def test_far_wrong_scores_stay_finite():
    assert loss_of([-1e4, 1e4], [1, 2]) == pytest.approx(2e4)


def test_no_pair_is_no_loss():
    assert loss_of([1.0, 2.0], [1, 1]) == 0.0
    assert loss_of([], []) == 0.0


def test_which_response_is_preferred():
    """A lower rank is better, and only within a prompt."""
    found = is_preferred(torch.tensor([1, 2, 1]), torch.tensor([0, 0, 1]))
    assert found.nonzero().tolist() == [[0, 1]]
