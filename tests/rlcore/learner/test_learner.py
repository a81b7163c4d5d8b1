"""What a learner says of tokens, and what a frozen one refuses."""

import numpy as np
import pytest

from rlcore.algorithms.objective import SftObjective
from rlcore.learner.spec import Term
from schemas.errors import UserError
from tests.rlcore.learner.samples import make_batch


def test_scores_of_all_tokens_and_of_loss_tokens(learner_of):
    batch, learner = make_batch(7), learner_of(micro_batch_tokens=60)
    everything = learner.logprobs(batch, 0.7, entropy=True)
    masked = learner.logprobs(batch, 0.7, targets="loss_mask")
    assert masked.entropies == []
    for row, mask in enumerate(batch.loss_mask):
        assert everything.logprobs[row].shape == mask.shape
        assert everything.logprobs[row][0] == 0.0
        assert (everything.entropies[row][1:] > 0).all()
        np.testing.assert_allclose(
            masked.logprobs[row], np.where(mask, everything.logprobs[row], 0.0), atol=1e-5
        )


def test_frozen_learner_scores_and_refuses_to_step(learner_of, batch):
    """The reference policy costs no optimizer and cannot drift."""
    frozen, policy = learner_of(trainable=False), learner_of()
    for ours, theirs in zip(
        frozen.logprobs(batch).logprobs, policy.logprobs(batch).logprobs, strict=True
    ):
        # DeepSpeed moves the policy's weights, and on a CPU rounding may depend on their alignment.
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert frozen.stamp() == policy.stamp()
    with pytest.raises(UserError, match="is frozen"):
        frozen.step([Term(batch, SftObjective())], 0.1)
