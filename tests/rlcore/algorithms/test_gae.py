"""GAE over multi-turn streams, its lambdas and its whitening."""

import numpy as np
import pytest

from rlcore.algorithms.advantages import AdvantageInput, estimate
from rlcore.algorithms.gae import (
    discounted_returns,
    generalized_advantages,
    length_adaptive_lambda,
    whitened,
)


def gae_of(scores, values, masks, **options):
    """Advantages and returns of rows that are a group each."""
    masks = [np.array(mask, dtype=bool) for mask in masks]
    values = [np.array(row, dtype=np.float64) for row in values]
    batch = AdvantageInput(np.array(scores), np.arange(len(masks)), masks, values=values)
    found = estimate("gae", batch, **options)
    assert found.returns is not None
    return found.advantages, found.returns


def test_one_turn_by_hand():
    """Rewards [0, 0, 1], V = .5, lambda .95 (arXiv 1506.02438 eq. 16)."""
    (advantages,), (returns,) = gae_of([1.0], [[0.5] * 3], [[1] * 3], lam=0.95, whiten=False)
    np.testing.assert_allclose(advantages, [0.45125, 0.475, 0.5], atol=1e-12)
    np.testing.assert_allclose(returns, [0.95125, 0.975, 1.0], atol=1e-12)


def test_observations_are_skipped_not_zeroed():
    """What follows a tool's output is credited to the tokens before it."""
    mask = [1, 0, 0, 1, 0]
    (advantages,), (returns,) = gae_of(
        [1.0], [[0.2, 0.9, 0.9, 0.4, 0.9]], [mask], lam=0.9, whiten=False
    )
    np.testing.assert_allclose(advantages, [0.74, 0, 0, 0.6, 0], atol=1e-12)
    np.testing.assert_allclose(returns, [0.94, 0, 0, 1.0, 0], atol=1e-12)


def test_whitening_by_hand():
    """Raw [.74, .6] have mean .67 and unbiased variance .0098; returns stay unwhitened and the
    masked slots exactly 0 (verl leaves -6.77 in padding)."""
    (advantages,), (returns,) = gae_of([1.0], [[0.2, 9, 9, 0.4, 9]], [[1, 0, 0, 1, 0]], lam=0.9)
    scale = np.sqrt(0.0098 + 1e-8)
    np.testing.assert_allclose(advantages, [0.07 / scale, 0, 0, -0.07 / scale, 0], atol=1e-9)
    np.testing.assert_allclose(returns, [0.94, 0, 0, 1.0, 0], atol=1e-12)


def test_whitening_is_over_all_valid_tokens_of_the_batch():
    advantages, _ = gae_of([1.0, -2.0], [[0.1, 0.2, 0.3], [0.5]], [[1, 0, 1], [1]])
    values = np.concatenate(advantages)[[0, 2, 3]]
    assert values.mean() == pytest.approx(0.0, abs=1e-12)
    assert values.var(ddof=1) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("masks", [[[0, 1, 0]], [[0, 1], [0, 0]]])
def test_a_single_valid_token_is_not_whitened(masks):
    """One token has no variance; verl raises."""
    scores = [1.0] * len(masks)
    advantages, returns = gae_of(scores, [[0.25] * len(m) for m in masks], masks)
    assert advantages[0][1] == 0.75
    assert returns[0][1] == 1.0
    assert all(not row[0] for row in advantages)


def test_monte_carlo_form():
    """ "A = reward - value" of the source holds exactly at gamma = lambda = 1."""
    values = [0.3, -0.2, 0.9]
    (advantages,), (returns,) = gae_of([2.0], [values], [[1] * 3], whiten=False)
    np.testing.assert_allclose(advantages, 2.0 - np.array(values), atol=1e-12)
    np.testing.assert_allclose(returns, [2.0] * 3, atol=1e-12)


def test_decoupled_lambdas():
    """With lambda_critic 1 the target is the reward at every token, while the policy's
    advantage uses its own lambda."""
    values = [[0.5] * 3]
    (advantages,), (returns,) = gae_of(
        [1.0], values, [[1] * 3], lam=0.95, lam_critic=1.0, whiten=False
    )
    np.testing.assert_allclose(returns, [1.0] * 3, atol=1e-12)
    np.testing.assert_allclose(advantages, [0.45125, 0.475, 0.5], atol=1e-12)


@pytest.mark.parametrize(
    ("length", "expected"),
    [(10, 0.0), (20, 0.0), (21, 0.0476), (100, 0.8), (400, 0.95), (2000, 0.99), (0, 0.0)],
)
def test_length_adaptive_lambda(length, expected):
    """The formula of arXiv 2504.05118 section 4.2, clamped (.800 at 100 tokens, not .833)."""
    found = length_adaptive_lambda(np.array([length]), 0.05)
    assert float(found[0]) == pytest.approx(expected, abs=5e-5)


def test_length_adaptive_lambda_counts_policy_tokens():
    """lambda = 1 - 1 / (.25 x 8) = .5: observations do not make an answer longer."""
    mask = np.array([1] * 4 + [0] * 30 + [1] * 4)
    (adaptive,), (returns,) = gae_of(
        [1.0], [np.full(38, 0.5)], [mask], length_adaptive_alpha=0.25, whiten=False
    )
    (fixed,), _ = gae_of([1.0], [np.full(38, 0.5)], [mask], lam=0.5, whiten=False)
    np.testing.assert_allclose(adaptive, fixed, atol=1e-12)
    np.testing.assert_allclose(returns[mask == 1], 1.0, atol=1e-12)  # the critic keeps lam = 1


def test_gamma_below_one_forgets_the_reward_of_long_answers():
    """Why VAPO has gamma 1: .99 leaves .0059 of the reward at the first of 512 tokens."""
    rewards = np.zeros(512)
    rewards[-1] = 1.0
    lengths = np.array([512])
    assert discounted_returns(rewards, lengths, 0.99)[0] == pytest.approx(0.0059, abs=5e-5)
    assert discounted_returns(rewards, lengths)[0] == 1.0


def test_an_unscorable_row_does_not_train_the_critic():
    """A return of 0 would pull its values down; its own values as target ask for nothing."""
    advantages, returns = gae_of([np.nan, 1.0, 0.0], [[0.7, 0.6], [0.5], [0.5]], [[1, 1], [1], [1]])
    assert advantages[0].tolist() == [0.0, 0.0]
    assert returns[0].tolist() == [0.7, 0.6]
    expected = 0.5 / np.sqrt(0.5 + 1e-8)
    np.testing.assert_allclose(np.concatenate(advantages[1:]), [expected, -expected], atol=1e-9)


def one_row(rewards, values, mask, gamma, lam) -> np.ndarray:
    """The definition, token by token: V and A of the next policy token, carried over the others."""
    advantages, next_value, next_advantage = np.zeros(len(mask)), 0.0, 0.0
    for t in reversed(range(len(mask))):
        if mask[t]:
            delta = rewards[t] + gamma * next_value - values[t]
            next_advantage = delta + gamma * lam * next_advantage
            next_value = values[t]
            advantages[t] = next_advantage
    return advantages


def test_all_rows_at_once_equal_one_row_at_a_time():
    """Ragged rows, some without a policy token, a lambda of each row's own."""
    rng = np.random.default_rng(7)
    for _ in range(50):
        sizes = rng.integers(0, 12, size=rng.integers(0, 9))
        masks = [rng.random(size) < rng.random() for size in sizes]
        rewards, values = ([rng.normal(size=size) for size in sizes] for _ in range(2))
        lam = rng.random(len(sizes))
        lengths = np.array([mask.sum() for mask in masks], dtype=np.int64)

        def flat(rows, masks=masks):
            kept = [row[mask] for row, mask in zip(rows, masks, strict=True)]
            return np.concatenate(kept) if kept else np.zeros(0)

        found = generalized_advantages(flat(rewards), flat(values), lengths, gamma=0.9, lam=lam)
        expected = [
            one_row(rewards[row], values[row], masks[row], 0.9, lam[row])
            for row in range(len(sizes))
        ]
        np.testing.assert_allclose(found, flat(expected), atol=1e-12)


def test_whitening_of_equal_values_is_exactly_zero():
    """Rounding in the mean, times 1e4, would be a gradient."""
    values = np.full(7, 0.1)
    assert not whitened(values, np.ones(7, dtype=bool)).any()
