"""Shares of ranks: complete, of about equal tokens, groups whole where that is cheap."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlcore.learner.pool import balance, balance_groups, balanced

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=60)


@given(LENGTHS, st.integers(1, 5))
def test_shares_are_balanced_and_complete(lengths, num_shares):
    shares = balance(np.array(lengths), num_shares)
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(lengths)))
    loads = [sum(lengths[i] for i in share) for share in shares]
    assert max(loads) - min(loads) <= max(lengths)


@given(LENGTHS, st.integers(1, 6), st.integers(1, 5))
def test_shares_of_whole_groups_are_complete(lengths, num_groups, num_shares):
    groups = np.arange(len(lengths)) % num_groups
    shares = balance_groups(np.array(lengths), groups, num_shares)
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(lengths)))
    homes = [set(groups[share].tolist()) for share in shares]
    assert sum(len(home) for home in homes) == len(set().union(*homes)), "a group is split"


def test_groups_stay_on_one_rank_unless_that_unbalances_the_ranks():
    """A rank computes a prompt once for the answers that it holds."""
    lengths, groups = np.full(32, 10), np.arange(32) % 4
    shares = balanced(lengths, groups, 2)
    assert [len(set(groups[share].tolist())) for share in shares] == [2, 2]
    assert [len(share) for share in balanced(lengths, np.zeros(32, int), 2)] == [16, 16]
    assert [len(share) for share in balanced(lengths, None, 2)] == [16, 16]
