from typing import get_args

import numpy as np
import pytest

from rlcore.algorithms.aggregation import Totals, token_weights
from schemas.algorithm import Algorithm
from schemas.errors import UserError

MODES = get_args(Algorithm.model_fields["aggregation"].annotation)

# Two rows of losses, [1, 1, 1, 1] and [5, 5].
LENGTHS = np.array([4, 2])
LOSSES = [np.ones(4), np.full(2, 5.0)]
EXPECTED = {
    "token-mean": 14 / 6,
    "seq-mean-token-sum": 7.0,
    "seq-mean-token-mean": 3.0,
    "seq-mean-token-sum-norm": 1.75,
    "group-token-mean": 3.0,
}


def aggregate(mode: str, lengths: np.ndarray, losses: list[np.ndarray]) -> float:
    groups = np.arange(len(lengths))
    weights = token_weights(mode, lengths, horizon=4, groups=groups)
    return sum(float(w * row.sum()) for w, row in zip(weights, losses, strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_modes_give_the_hand_computed_values(mode):
    assert aggregate(mode, LENGTHS, LOSSES) == pytest.approx(EXPECTED[mode], abs=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_rows_without_loss_tokens_change_nothing(mode):
    """An aborted answer must not dilute the others."""
    lengths, losses = np.array([4, 0, 2]), [LOSSES[0], np.zeros(0), LOSSES[1]]
    assert aggregate(mode, lengths, losses) == pytest.approx(EXPECTED[mode], abs=1e-12)
    assert token_weights(mode, lengths, horizon=4, groups=np.array([0, 1, 1]))[1] == 0.0


@pytest.mark.parametrize("mode", MODES)
def test_shares_weigh_what_the_whole_weighs(mode):
    """A token's weight does not depend on which rank or micro-batch it is in."""
    lengths, groups = np.array([3, 1, 0, 7, 2]), np.array([5, 8, 8, 5, 8])
    whole = token_weights(mode, lengths, horizon=8, groups=groups)
    shares = [(lengths[:2], groups[:2]), (lengths[2:], groups[2:])]
    totals = Totals.added(Totals.of(*share) for share in shares)
    assert totals == Totals.of(lengths, groups)
    parts = [token_weights(mode, rows, totals, 8, ids) for rows, ids in shares]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-14)


def test_scope_of_the_token_mean():
    """The token mean is over the mini-batch; "group-token-mean" is DAPO eq. 8 as printed,
    where a prompt of long answers weighs no more than another."""
    lengths, groups = np.array([4, 2, 1, 0]), np.array([0, 1, 1, 2])
    losses = [np.ones(4), np.full(2, 5.0), np.full(1, 2.0), np.zeros(0)]
    for mode, expected in (("token-mean", 16 / 7), ("group-token-mean", (1 + 12 / 3) / 2)):
        weights = token_weights(mode, lengths, groups=groups)
        found = sum(float(w * row.sum()) for w, row in zip(weights, losses, strict=True))
        assert found == pytest.approx(expected, abs=1e-12)
    assert Totals.of(lengths, groups).groups == {0: 4, 1: 3}


def test_bad_input_is_reported():
    with pytest.raises(UserError, match="horizon = None"):
        token_weights("seq-mean-token-sum-norm", LENGTHS)
    with pytest.raises(UserError, match="needs the prompt group of each row"):
        token_weights("group-token-mean", LENGTHS)
    with pytest.raises(UserError, match="no token to train on"):
        token_weights("token-mean", np.zeros(3, dtype=int))
