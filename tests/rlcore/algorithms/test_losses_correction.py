import numpy as np
import pytest
import torch

from rlcore.algorithms.losses import importance_weights
from schemas.errors import UserError


def test_truncated_importance_weights():
    """The weight is min(exp(old - sampler), cap), per token or over the sequence's sum."""
    old = torch.log(torch.tensor([0.5, 0.9, 0.2]))
    sampler = torch.log(torch.tensor([0.25, 0.1, 0.4]))
    rows = torch.tensor([0, 0, 1])
    token = importance_weights(old, sampler, rows, level="token", cap=2.0)
    np.testing.assert_allclose(token, [2.0, 2.0, 0.5], rtol=1e-6)
    sequence = importance_weights(old, sampler, rows, level="sequence", cap=100.0)
    np.testing.assert_allclose(sequence, [18.0, 18.0, 0.5], rtol=1e-5)
    assert importance_weights(old, sampler, rows, level="none", cap=2.0).tolist() == [1, 1, 1]


def test_unknown_level_is_answered_with_the_nearest():
    one = torch.zeros(1)
    with pytest.raises(UserError, match="did you mean 'sequence'"):
        importance_weights(one, one, one.long(), level="sequences", cap=1.0)
