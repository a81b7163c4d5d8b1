"""The reward model's loss over ranked responses (InstructGPT arXiv 2203.02155 eq. 1).

Axes: R responses. Lower rank = better; equal ranks are ties and make no pair. All pairs of a prompt
are in one batch, so each response is passed through the model once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


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
