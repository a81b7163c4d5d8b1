"""What a learner says of tokens, what a frozen one refuses, and a step in two halves: gradients
that are summed and held, and the update that applies them."""

from dataclasses import replace

import numpy as np
import pytest

from rlcore.algorithms.objective import PolicyObjective, SftObjective
from rlcore.learner.spec import Term, UpdateRequest, VersionConflict
from schemas.errors import UserError
from tests.rlcore.learner.samples import assert_same_weights, make_batch, weights_of


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


REPORTED = PolicyObjective(on_policy=True, entropy_coef=0.0, skip_zero_advantage=True)
SPLIT = {"micro_batch_tokens": 100}  # several passes


def single(digest: str = "a", *, sequences: int = 9, seed: int = 0) -> UpdateRequest:
    """An update of one step, in which a third of the rows have an advantage of 0."""
    batch = make_batch(sequences, seed)
    advantages = [
        row if number % 3 else np.zeros_like(row)
        for number, row in enumerate(batch.per_token["advantages"])
    ]
    batch = replace(batch, per_token={**batch.per_token, "advantages": advantages})
    terms = [Term(batch, REPORTED), Term(make_batch(3, seed=7), SftObjective(name="ptx"))]
    return UpdateRequest(0, digest, [terms], [0.05])


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_a_step_in_two_halves_is_the_step(zero_stage, learner_of):
    """Bit for bit, with scoring and publishing between the halves."""
    halves, whole = (learner_of(zero_stage=zero_stage, **SPLIT) for _ in range(2))
    before = halves.stamp()
    halves.accumulate(single())
    halves.logprobs(make_batch(3))
    assert halves.stamp() == before, "held gradients are not applied"
    halves.publish()
    assert halves.update(single()) == whole.update(single())
    assert halves.stamp() == whole.stamp()
    again = replace(single("b", seed=5), version=1)
    assert halves.update(again) == whole.update(again), "the next step starts from no gradient"
    assert halves.stamp() == whole.stamp()


def test_the_scores_are_those_of_the_passes(learner_of):
    """Log-probs and entropies of rows that train; nothing was computed on the others."""
    learner = learner_of(**SPLIT)
    sequences = single().mini_batches[0][0].sequences
    expected = learner.logprobs(sequences, targets="loss_mask", entropy=True)
    found = learner.accumulate(single())
    for row, mask in enumerate(sequences.loss_mask):
        trains = mask & bool(row % 3)
        for ours, theirs in (
            (found.logprobs[row], expected.logprobs[row]),
            (found.entropies[row], expected.entropies[row]),
        ):
            assert np.isnan(ours[~trains]).all()
            np.testing.assert_allclose(ours[trains], theirs[trains], atol=1e-5)


def test_what_was_summed_once_is_summed_once(learner_of):
    """A repeated call returns the same and adds nothing; after the update there is nothing left."""
    learner, other = learner_of(), learner_of()
    first, second = learner.accumulate(single()), learner.accumulate(single())
    for one, two in zip(first.logprobs, second.logprobs, strict=True):
        np.testing.assert_array_equal(one, two)
    assert learner.update(single()) == other.update(single())
    assert learner.update(single()) == other.update(single()), "as recorded"
    assert learner.accumulate(single()) is None
    with pytest.raises(VersionConflict, match="requested for version 0"):
        learner.accumulate(single("b"))


def test_held_gradients_reach_no_other_step(learner_of, tmp_path):
    learner = learner_of()
    learner.save(tmp_path / "checkpoint")
    learner.accumulate(single())
    terms = [Term(make_batch(3), SftObjective())]
    for other in (
        lambda: learner.update(single("b")),
        lambda: learner.accumulate(single("b")),
        lambda: learner.step(terms, 0.1),
        lambda: learner.load(tmp_path / "checkpoint"),
    ):
        with pytest.raises(VersionConflict, match=r"another batch of version 0, .* build"):
            other()
    assert learner.update(single()).version == 1


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_two_ranks_hold_what_one_holds(zero_stage, spec, pair, learner_of):
    alone = learner_of()
    group = pair.build(replace(spec, zero_stage=zero_stage, **SPLIT))
    expected, found = alone.accumulate(single()), group.accumulate(single())
    for name in ("logprobs", "entropies"):
        pairs = zip(getattr(found, name), getattr(expected, name), strict=True)
        for ours, theirs in pairs:
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
    ours, theirs = group.update(single()), alone.update(single())
    assert ours.metrics["actor/grad_norm"] == pytest.approx(theirs.metrics["actor/grad_norm"])
    assert_same_weights(weights_of(group), weights_of(alone))
