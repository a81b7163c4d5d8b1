"""Generalized advantage estimation, discounted returns and whitening: recursions over the policy
tokens of many ragged rows at once, in float64 numpy.

Axes: R rows, N all policy tokens of the batch, row after row. A masked slot (observation, padding)
is skipped, not zeroed: the value that follows it is carried across it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

WHITEN_EPS = 1e-8  # added to the variance (verl masked_whiten)


def generalized_advantages(
    rewards_N: np.ndarray,
    values_N: np.ndarray,
    lengths_R: np.ndarray,
    *,
    gamma: float = 1.0,
    lam: float | np.ndarray = 1.0,
) -> np.ndarray:
    """Return A [N]: delta_t = R_t + gamma V_{t+1} - V_t; A_t = delta_t + gamma lam A_{t+1}.

    GAE, arXiv 1506.02438 eq. 16, within each row; V after a row's last policy token is 0.
    ``values_N`` is the value of the state *before* each token. ``lam`` is a number or one per row
    [R]. The critic's target is A + V, before any whitening.
    """
    lam_R = np.broadcast_to(np.asarray(lam, dtype=np.float64), lengths_R.shape)
    advantages_N = np.zeros(len(rewards_N))
    # Nothing follows a row: one that was cut off is not continued by the critic's guess, either.
    next_value_R, next_advantage_R = np.zeros(len(lengths_R)), np.zeros(len(lengths_R))
    for rows, tokens in _backwards(lengths_R):
        value = values_N[tokens]
        delta = rewards_N[tokens] + gamma * next_value_R[rows] - value
        advantage = delta + gamma * lam_R[rows] * next_advantage_R[rows]
        advantages_N[tokens] = advantage
        next_value_R[rows], next_advantage_R[rows] = value, advantage
    return advantages_N


def discounted_returns(
    rewards_N: np.ndarray, lengths_R: np.ndarray, gamma: float = 1.0
) -> np.ndarray:
    """Return G [N]: G_t = R_t + gamma G_{t+1} within each row (GAE with V = 0 and lam = 1)."""
    return generalized_advantages(rewards_N, np.zeros(len(rewards_N)), lengths_R, gamma=gamma)


def length_adaptive_lambda(lengths_R: np.ndarray, alpha: float) -> np.ndarray:
    """Return 1 - 1 / (alpha l) clamped to [0, 1] per row [R], l policy tokens (VAPO section 4.2).

    arXiv 2504.05118 eq. 8 leaves l < 1 / alpha negative; like NeMo-RL we clamp.

    >>> length_adaptive_lambda(np.array([10, 20, 100, 2000]), 0.05).round(2)
    array([0.  , 0.  , 0.8 , 0.99])
    """
    return np.clip(1.0 - 1.0 / (alpha * np.maximum(lengths_R, 1)), 0.0, 1.0)


def whitened(values_N: np.ndarray, counted_N: np.ndarray) -> np.ndarray:
    """Return (x - mean) / sqrt(var + 1e-8), both taken over the tokens of ``counted_N`` [N] bool.

    Variance is unbiased. With one counted token or none there is no scale: the values come back
    unchanged (verl raises). Equal values become exactly 0.
    """
    counted = values_N[counted_N]
    if len(counted) <= 1:
        return values_N
    # A rounded mean would leave tiny advantages; rows of exactly 0 may be left out of the step.
    if counted.min() == counted.max():
        return values_N - counted[0]
    return (values_N - counted.mean()) / np.sqrt(counted.var(ddof=1) + WHITEN_EPS)


def _backwards(lengths_R: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, from the longest row's last position down, (rows that reach it, their token there).

    One pass per position over all rows, without padding them to one length.
    """
    order = np.argsort(-lengths_R, kind="stable")
    start_R = np.concatenate([[0], np.cumsum(lengths_R)])[:-1]
    ascending = lengths_R[order][::-1]
    longest = int(ascending[-1]) if len(ascending) else 0
    # Rows in ``order`` that hold more than t tokens are a prefix of it.
    reach_T = len(lengths_R) - np.searchsorted(ascending, np.arange(longest), side="right")
    for position in reversed(range(longest)):
        rows = order[: reach_T[position]]
        yield rows, start_R[rows] + position
