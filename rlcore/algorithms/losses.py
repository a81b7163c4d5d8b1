"""Losses per token or pair: importance ratios and policy losses, the critic's loss, the reward
model's; aggregated by ``aggregation.token_weights``, and corrected by ``corrections``, outside.

Axes: R responses. Lower rank = better; equal ranks are ties and make no pair. All pairs of a prompt
are in one batch, so each response is passed through the model once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlcore.algorithms.plugins import resolve
from rlcore.store.user_modules import raised_at
from schemas.errors import UserError

if TYPE_CHECKING:
    import torch


LOG_RATIO_LIMIT = 20.0  # nats; keeps exp finite when a stale policy has drifted far


@dataclass(frozen=True, slots=True)
class ClippedLoss:
    """All of the shape of the ratio; the three masks are booleans, for metrics."""

    loss: torch.Tensor
    clipped: torch.Tensor  # the low/high clip took the gradient (cispo: bounded the weight)
    clipped_dual: torch.Tensor  # A < 0 and the dual clip took the gradient
    outside_low: torch.Tensor  # clipped from below


def token_ratio(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """Return r = exp(clamp(lp - old, -20, 20)) per token (PPO, GRPO, DAPO)."""
    return (logprobs - old_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def sequence_ratio(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """Return s_i = exp(mean over the sequence's tokens of lp - old), on each of its tokens.

    GSPO, arXiv 2507.18071 eq. 7. With the group's log-expectation in place of ``old_logprobs`` it
    is GEPO's w_i = p_i / E (``group_log_expectation``).
    """
    _, index, counts = rows.unique(return_inverse=True, return_counts=True)
    # GSPO clips at 3e-4: the rounding of thousands of fp32 additions is of that size, and depends
    # on their order.
    difference = (logprobs - old_logprobs).double()
    mean = difference.new_zeros(len(counts)).index_add(0, index, difference) / counts
    bounded = mean.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return bounded[index].to(logprobs.dtype)


def sequence_token_ratio(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """Return sg[s_i] exp(lp - sg[lp]) per token: s_i in value, token-wise in gradient.

    GSPO-token, arXiv 2507.18071 eq. 14; with one advantage per sequence its gradient is GSPO's.
    """
    sequence = sequence_ratio(logprobs.detach(), old_logprobs, rows)
    # The second factor is 1 in value; it carries the gradient of each token.
    return sequence * (logprobs - logprobs.detach()).exp()


# The ratio [tokens] by level. ``rows`` [tokens] int64: the sequence of each token, any ids;
# sequences are never split. "group" reads the group's log-expectation as ``old_logprobs``.
RATIOS: dict[str, Callable[..., torch.Tensor]] = {
    "token": token_ratio,
    "sequence": sequence_ratio,
    "sequence-token": sequence_token_ratio,
    "group": sequence_ratio,
}


def group_log_expectation(mean_logq: np.ndarray, group_ids: np.ndarray) -> np.ndarray:
    """Return log(sum q^2 / sum q) of each row's group [R] float64: GEPO's denominator.

    ``mean_logq`` [R] is the mean log-prob per policy token under the *sampler* (nats), so that
    q = exp(mean_logq) is the geometric mean of the token probabilities; NaN for a row without a
    policy token, which its group leaves out. NaN where a group has no other row. The q-weighted
    form and the length normalisation are those of the official code (HeteroRL_GEPO online_rl.py);
    with raw sums only the likeliest sample gets a gradient (docs/understand/algorithms.md, "GEPO").
    """
    logq_R = np.asarray(mean_logq, dtype=np.float64)
    _, index_R = np.unique(np.asarray(group_ids), return_inverse=True)
    num_groups = int(index_R.max()) + 1 if len(logq_R) else 0
    present_R = ~np.isnan(logq_R)
    highest_G = np.full(num_groups, -np.inf)
    np.maximum.at(highest_G, index_R[present_R], logq_R[present_R])
    # Relative to the group's largest, so that neither sum can underflow.
    q_R = np.exp(np.where(present_R, logq_R - highest_G[index_R], -np.inf))
    sum_G = np.bincount(index_R, weights=q_R, minlength=num_groups)
    square_G = np.bincount(index_R, weights=q_R**2, minlength=num_groups)
    log_G = np.full(num_groups, np.nan)
    held_G = sum_G > 0
    log_G[held_G] = highest_G[held_G] + np.log(square_G[held_G] / sum_G[held_G])
    return log_G[index_R]


def clipped_surrogate(
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    clip_dual: float | None,
) -> ClippedLoss:
    """L = max(-A r, -A clip(r, 1 - low, 1 + high)); where A < 0 also L = min(L, -A dual).

    PPO arXiv 1707.06347 eq. 7; asymmetric clip DAPO arXiv 2503.14476; dual clip arXiv 1912.09729
    eq. 5, ``None`` = off. Elementwise on any shape.
    """
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    # The larger loss: beyond the clip a token keeps its gradient only where it leads back.
    loss = plain.maximum(bounded)
    clipped = bounded > plain
    clipped_dual = clipped.new_zeros(clipped.shape)
    if clip_dual is not None:
        # A bad token whose probability has grown would otherwise weigh as much as its ratio,
        # without a bound.
        ceiling = -advantages * clip_dual
        clipped_dual = (advantages < 0) & (loss > ceiling)
        loss = loss.minimum(ceiling).where(advantages < 0, loss)
    return ClippedLoss(loss, clipped, clipped_dual, clipped & (advantages < 0))


def cispo(
    ratio: torch.Tensor,
    logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    clip_dual: float | None,
) -> ClippedLoss:
    """L = -sg[clip(r, 1 - low, 1 + high)] A lp: bounds the weight and keeps every token's gradient.

    CISPO, MiniMax-M1 arXiv 2506.13585 eq. 4 and 5. ``clip_dual`` is not used.
    """
    # Detached: it weighs the gradient of the log-prob, and has none itself.
    weight = ratio.detach().clamp(1.0 - clip_low, 1.0 + clip_high)
    outside_low = ratio.detach() < 1.0 - clip_low
    outside = outside_low | (ratio.detach() > 1.0 + clip_high)
    loss = -weight * advantages * logprobs
    return ClippedLoss(loss, outside, outside.new_zeros(outside.shape), outside_low)


def reinforce(
    ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, **_: float | None
) -> ClippedLoss:
    """L = -A lp, without ratio or clip: REINFORCE, as the RLOO paper runs it (arXiv 2402.14740)."""
    return _unclipped(-advantages * logprobs)


LOSSES: dict[str, Callable[..., ClippedLoss]] = {
    "clip": lambda ratio, _, advantages, **clip: clipped_surrogate(ratio, advantages, **clip),
    "cispo": cispo,
    "reinforce": reinforce,
}


def policy_loss(
    name: str,
    ratio: torch.Tensor,
    logprobs: torch.Tensor,
    advantages: torch.Tensor,
    **clip: float | None,
) -> ClippedLoss:
    """Return the loss called ``name`` per token: one of ``LOSSES`` or the user's.

    ``clip``: as of ``clipped_surrogate``. The user's function is called with the same arguments and
    returns a loss [tokens], or a ClippedLoss when it has clips to report. Raises ``UserError`` for
    an unknown name, for a user's function that raises or returns no tensor, and for a loss of
    another shape.
    """
    import torch

    function = find_loss(name)
    try:
        found = function(ratio, logprobs, advantages, **clip)
        if not isinstance(found, ClippedLoss | torch.Tensor):
            raise TypeError(f"it returned {type(found).__name__}, not a loss per token")
    except Exception as error:
        if name in LOSSES or isinstance(error, UserError | MemoryError | torch.OutOfMemoryError):
            raise
        said = f"{type(error).__name__}: {error}{raised_at(error)}"
        raise UserError(
            f"rl.algorithm.policy_loss = '{name}' failed: {said}; correct the function"
        ) from error
    if not isinstance(found, ClippedLoss):
        found = _unclipped(found)
    if found.loss.shape != advantages.shape:
        raise UserError(
            f"policy_loss = '{name}' returned shape {tuple(found.loss.shape)}; it must return one "
            f"loss per token, {tuple(advantages.shape)}, which the pipeline aggregates"
        )
    return found


def find_loss(name: str, where: str = "policy_loss") -> Callable[..., Any]:
    """Return the loss called ``name``, once it takes what it is called with.

    ``where``: the dotted path shown in errors. Raises ``UserError`` for an unknown name and for
    another signature.
    """
    function = resolve(name, LOSSES, where)
    try:
        inspect.signature(function).bind(None, None, None, clip_low=0, clip_high=0, clip_dual=0)
    except TypeError as error:
        raise UserError(
            f"{where} = '{name}': {error}; it is called as"
            " f(ratio, logprobs, advantages, *, clip_low, clip_high, clip_dual)"
        ) from None
    return function


def _unclipped(loss: torch.Tensor) -> ClippedLoss:
    import torch

    never = torch.zeros_like(loss, dtype=torch.bool)
    return ClippedLoss(loss, never, never, never)


CONSTANT_SPREAD = 1e-6  # relative spread of returns below which they differ by fp32 rounding only


def clipped_value_loss(
    values: torch.Tensor, returns: torch.Tensor, old_values: torch.Tensor, clip: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (loss [tokens], clipped [tokens] bool).

    1/2 max((V - ret)^2, (clip(V, V_old - c, V_old + c) - ret)^2), with ``old_values`` those of
    rollout time (PPO as in verl compute_value_loss); ``clip`` None = 1/2 (V - ret)^2. Clipped: the
    bounded value's loss is the larger, so the token has no gradient.
    """
    import torch

    plain = (values - returns).square()
    if clip is None:
        return 0.5 * plain, torch.zeros_like(plain, dtype=torch.bool)
    bounded = values.clamp(old_values - clip, old_values + clip)
    bounded_loss = (bounded - returns).square()
    return 0.5 * plain.maximum(bounded_loss), bounded_loss > plain


def explained_variance(values: np.ndarray, returns: np.ndarray) -> float:
    """Return 1 - Var(ret - V) / (Var(ret) + 1e-5), unbiased, over valid tokens [tokens].

    NaN when there is nothing to explain: fewer than two tokens, or constant returns.
    """
    values = np.asarray(values, dtype=np.float64)
    returns = np.asarray(returns, dtype=np.float64)
    if len(returns) < 2:
        return float("nan")
    # Relative to the returns, whose fp32 rounding grows with their size.
    size = max(1.0, float(np.abs(returns).max()))
    if np.ptp(returns) <= CONSTANT_SPREAD * size:
        return float("nan")
    return float(1.0 - (returns - values).var(ddof=1) / (returns.var(ddof=1) + 1e-5))


def pair_weights(ranks: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return [R] float64: the weight of each pair of the row's group.

    1 / (non-tied pairs of the group x groups with a pair); 0 where the group has none. With them
    the loss is the mean over prompts of the mean over a prompt's pairs, in any split of the batch
    that keeps groups whole.
    """
    _, group_R = np.unique(np.asarray(groups), return_inverse=True)
    num_groups = int(group_R.max()) + 1 if len(group_R) else 0
    _, rank_R = np.unique(np.asarray(ranks), return_inverse=True)
    size_G = np.bincount(group_R, minlength=num_groups)
    # Pairs of all less pairs of equals: C(n, 2) - sum over ranks of C(t, 2).
    ties, tie_sizes = np.unique(np.stack([group_R, rank_R]), axis=1, return_counts=True)
    tied_G = np.bincount(
        ties[0].astype(np.int64), weights=tie_sizes * (tie_sizes - 1) // 2, minlength=num_groups
    )
    pairs_G = size_G * (size_G - 1) // 2 - tied_G
    filled_G = pairs_G > 0
    # Groups without a pair are not in the mean over prompts.
    weights_G = np.where(filled_G, 1.0 / np.maximum(pairs_G * filled_G.sum(), 1), 0.0)
    return weights_G[group_R]


def is_preferred(ranks: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Return [R, R] bool: True at (i, j) when i and j are of one group and i ranks before j."""
    return (groups[:, None] == groups[None, :]) & (ranks[:, None] < ranks[None, :])


def pairwise_loss(
    scores: torch.Tensor, ranks: torch.Tensor, groups: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Return the sum over pairs (winner, loser) of weight x -log sigmoid(s_winner - s_loser), 0-d.

    All [R]; ``weights`` from ``pair_weights`` over the whole optimizer step. Groups must be whole.
    """
    winners, losers = is_preferred(ranks, groups).nonzero(as_tuple=True)
    margins = scores[winners] - scores[losers]
    # -log sigmoid(m) = log(exp(0) + exp(-m)), finite for any margin.
    return (weights[winners] * margins.new_zeros(()).logaddexp(-margins)).sum()
