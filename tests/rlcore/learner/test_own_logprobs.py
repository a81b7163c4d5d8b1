"""Old log-probs that the update scores for itself: its first ratios are exactly 1."""

from dataclasses import replace

import numpy as np
import pytest

from rlcore.algorithms.objective import PolicyObjective, SftObjective
from rlcore.learner.spec import Term, UpdateRequest
from rlcore.models import logprobs
from rlcore.models.packing import Sequences
from tests.rlcore.learner.algorithms import SEQUENCE, algorithm_batch
from tests.rlcore.learner.samples import make_batch
from tests.tiers import fast

GSPO = PolicyObjective(
    ratio_level="sequence", aggregation=SEQUENCE, clip_low=3e-4, clip_high=4e-4, clip_dual=None
)
OBJECTIVES = {
    "gspo": GSPO,
    "gspo-token": replace(GSPO, ratio_level="sequence-token"),
    "grpo": PolicyObjective(aggregation=SEQUENCE, kl_coef=0.05, entropy_coef=0.01),
    "corrected": PolicyObjective(importance_level="token", temperature=0.7),
}
OFFSET = 6e-4  # nats: what another packing may add to every token in bfloat16
SPLIT = {"micro_batch_tokens": 160, "eps": 1e-8}  # several passes a step, and steps that move


def offset_batch(learner, objective: PolicyObjective = GSPO, sequences: int = 13) -> Sequences:
    """Advantages of 1, and the policy's own log-probs moved by ``OFFSET``: GSPO clips them all."""
    batch = algorithm_batch(sequences)
    scored = learner.logprobs(batch, objective.temperature, targets="loss_mask").logprobs
    fields = {
        "old_logprobs": [row - np.float32(OFFSET) for row in scored],
        "advantages": [np.ones(len(row), dtype=np.float32) for row in scored],
    }
    return replace(batch, per_token={**batch.per_token, **fields})


def request_of(
    batch: Sequences, objective: PolicyObjective = GSPO, *, own: bool = True
) -> UpdateRequest:
    """Two epochs of two mini-batches each, the second epoch's cut and packed otherwise."""
    rows = np.arange(len(batch))
    parts = [rows[::2], rows[1::2], rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    steps = [[Term(batch.take(part), objective)] for part in parts]
    return UpdateRequest(0, "digest", steps, [0.01] * len(steps), own_logprobs=own)


def assert_first_ratios_are_one(step: dict[str, float]) -> None:
    """The same computation twice: equal bits, not equal within a tolerance."""
    assert step["actor/ratio_max"] == 1.0
    assert step["actor/ppo_kl"] == 0.0
    assert step["actor/pg_clipfrac"] == 0.0


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float32") for name in OBJECTIVES), ("gspo", "bfloat16")]
)
def test_the_first_mini_batch_has_ratios_of_one(name, dtype, learner_of):
    """Whatever the first scoring said; and the policy has moved when the second step comes."""
    learner = learner_of(dtype=dtype, **SPLIT)
    batch = offset_batch(learner, OBJECTIVES[name])
    result = learner.update(request_of(batch, OBJECTIVES[name]))
    assert_first_ratios_are_one(result.steps[0])
    assert result.steps[0]["actor/grad_norm"] > 0
    assert all(step["actor/ppo_kl"] != 0.0 for step in result.steps[1:])


def test_an_offset_of_the_first_scoring_fills_the_clip_range(learner_of):
    """What scoring its own micro-batches is for: every token clipped, and no gradient left."""
    learner = learner_of(**SPLIT)
    result = learner.update(request_of(offset_batch(learner), own=False))
    assert result.steps[0]["actor/pg_clipfrac"] == pytest.approx(1.0)
    assert result.steps[0]["actor/zero_gradient_steps"] == 1.0
    assert result.old_logprobs == []


LAYOUTS = {
    "checkpointing": {"gradient_checkpointing": True},
    "eager": {"attn_implementation": "eager"},
    "long rows": {"row_tokens": 160},
    "bf16, zero 3": {"dtype": "bfloat16", "zero_stage": 3},
    "zero 0": {"zero_stage": 0},
    "two threads": {"threads": 2},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_no_layout_tells_the_two_passes_apart(name, learner_of):
    learner = learner_of(**SPLIT, **LAYOUTS[name])
    result = learner.update(request_of(offset_batch(learner)))
    assert_first_ratios_are_one(result.steps[0])


def test_chunks_of_a_large_vocabulary_are_those_of_the_exact_kl(
    learner_of, reference_dir, monkeypatch
):
    """The pass with gradient asks for more of each token; the chunks it is cut into stay equal."""
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", 61 * 12)
    objective = replace(GSPO, kl_coef=0.1, kl_estimator="full", entropy_coef=0.01)
    learner = learner_of(reference_dir=str(reference_dir), **SPLIT)
    result = learner.update(request_of(offset_batch(learner, objective), objective))
    assert_first_ratios_are_one(result.steps[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_of_a_large_vocabulary_are_those_of_the_scores(dtype, learner_of, monkeypatch):
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", 61 * 12)
    monkeypatch.setattr(logprobs, "BLOCK_LOGITS", 61 * 12)
    objective = replace(GSPO, entropy_coef=0.01)
    learner = learner_of(dtype=dtype, **SPLIT)
    result = learner.update(request_of(offset_batch(learner, objective), objective))
    assert_first_ratios_are_one(result.steps[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("zero_stage", fast([1, 2, 3], 3))
def test_ranks_score_what_they_train(zero_stage, dtype, spec, pair, learner_of):
    """Each its own share, and the answers come back in the order of the mini-batch."""
    changes = {"zero_stage": zero_stage, "dtype": dtype, **SPLIT}
    alone, group = learner_of(dtype=dtype, **SPLIT), pair.build(replace(spec, **changes))
    batch = offset_batch(alone)
    request = request_of(batch)
    result = group.update(request)
    assert_first_ratios_are_one(result.steps[0])
    expected = alone.update(request).old_logprobs
    for ours, theirs, (term,) in zip(
        result.old_logprobs, expected, request.mini_batches, strict=True
    ):
        mask = np.concatenate(term.sequences.loss_mask)
        np.testing.assert_array_equal(np.isnan(ours), ~mask)
        near = 1e-5 if dtype == "float32" else 0.3  # rounding of another packing
        np.testing.assert_allclose(ours[mask], theirs[mask], atol=near)


def test_a_rank_without_a_row_takes_part(spec, pair, tmp_path):
    """And an update that a checkpoint remembers is answered by all ranks."""
    group = pair.build(replace(spec, zero_stage=3))
    (first, *_) = request_of(offset_batch(group, sequences=2)).mini_batches
    request = UpdateRequest(0, "digest", [first], [0.01], own_logprobs=True)
    result = group.update(request)
    assert_first_ratios_are_one(result.steps[0])
    group.save(tmp_path)
    group.load(tmp_path)
    assert group.update(request) == result


def test_every_step_is_measured_against_the_weights_before_the_update(learner_of):
    """One frozen policy for all epochs, each scored in the packing that it trains in."""
    learner, before = learner_of(**SPLIT), learner_of()
    batch = offset_batch(learner)
    request = request_of(batch)
    result = learner.update(request)
    assert len(result.old_logprobs) == 4
    for old, (term,) in zip(result.old_logprobs, request.mini_batches, strict=True):
        mask = np.concatenate(term.sequences.loss_mask)
        scored = before.logprobs(term.sequences, targets="loss_mask").logprobs
        np.testing.assert_allclose(old[mask], np.concatenate(scored)[mask], atol=1e-5)
        now = np.concatenate(learner.logprobs(term.sequences, targets="loss_mask").logprobs)
        assert np.abs(old[mask] - now[mask]).max() > 1e-3, "the policy has not moved"


def test_only_rows_that_train_are_scored(learner_of):
    """Rows of advantage 0 cost no pass; auxiliary text has no old log-probs."""
    learner = learner_of(**SPLIT)
    batch = offset_batch(learner)
    advantages = [
        row * np.float32(index % 3 == 0) for index, row in enumerate(batch.per_token["advantages"])
    ]
    batch = replace(batch, per_token={**batch.per_token, "advantages": advantages})
    terms = [
        Term(batch, replace(GSPO, skip_zero_advantage=True)),
        Term(make_batch(3, 9), SftObjective(name="ptx")),
    ]
    result = learner.update(UpdateRequest(0, "digest", [terms], [0.01], own_logprobs=True))
    assert_first_ratios_are_one(result.steps[0])
    trained = np.concatenate(batch.loss_mask) & (np.concatenate(advantages) != 0)
    np.testing.assert_array_equal(~np.isnan(result.old_logprobs[0]), trained)


def test_the_recorded_update_keeps_what_it_measured_against(learner_of, tmp_path):
    """Asked twice it steps once and scores once; a checkpoint does not carry the arrays."""
    learner = learner_of(**SPLIT)
    request = request_of(offset_batch(learner))
    result = learner.update(request)
    stamp = learner.stamp()
    again = learner.update(request)
    assert (again, learner.stamp()) == (result, stamp)
    assert [row.tobytes() for row in again.old_logprobs] == [
        row.tobytes() for row in result.old_logprobs
    ]
    learner.save(tmp_path)
    resumed = learner_of(**SPLIT)
    resumed.load(tmp_path)
    assert resumed.update(request) == result
    assert resumed.update(request).old_logprobs == []
    assert resumed.stamp() == stamp
