"""Which sequences each rank of a learner takes. numpy only."""

import numpy as np

UNEVEN = 1.1  # tokens of the fullest rank over the best balance, at most, to keep groups whole


def balance(lengths: np.ndarray, num_shares: int) -> list[np.ndarray]:
    """Split sequences into ``num_shares`` index arrays of about equal tokens, each ascending.

    Each sequence, longest first, goes to the share with the fewest tokens (ties: the lower index),
    so that the split is a function of ``lengths`` alone. Shares may be empty when there are fewer
    sequences than shares.
    """
    load = np.zeros(num_shares, dtype=np.int64)
    shares: list[list[int]] = [[] for _ in range(num_shares)]
    for index in np.argsort(-lengths, kind="stable").tolist():
        lightest = int(np.argmin(load))
        shares[lightest].append(index)
        load[lightest] += lengths[index]
    return [np.array(sorted(share), dtype=np.int64) for share in shares]


def balanced(lengths: np.ndarray, groups: np.ndarray | None, num_shares: int) -> list[np.ndarray]:
    """``balance``, with groups kept whole where that costs less than a tenth of balance: answers on
    different ranks cannot share the tokens of their prompt."""
    apart = balance(lengths, num_shares)
    if groups is None or num_shares == 1:
        return apart
    whole = balance_groups(lengths, groups, num_shares)
    fullest = [max(int(lengths[share].sum()) for share in shares) for shares in (whole, apart)]
    return whole if fullest[0] <= UNEVEN * fullest[1] else apart


def balance_groups(lengths: np.ndarray, groups: np.ndarray, num_shares: int) -> list[np.ndarray]:
    """``balance`` without splitting a group: [sequences] lengths and groups to index arrays."""
    _, group_of = np.unique(groups, return_inverse=True)
    tokens = np.bincount(group_of, weights=lengths).astype(np.int64)
    return [np.flatnonzero(np.isin(group_of, share)) for share in balance(tokens, num_shares)]
