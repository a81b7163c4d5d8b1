"""Two ranks in processes of their own must train what one rank trains."""

from dataclasses import replace

import numpy as np
import pytest

from rlcore.algorithms.objective import (
    PolicyObjective,
    PreferenceObjective,
    SftObjective,
    ValueObjective,
)
from rlcore.algorithms.preference import DpoObjective, KtoObjective
from rlcore.learner.spec import Term, UpdateRequest
from rlcore.models.packing import Sequences
from rlcore.supervised.reward_model import ranked_sequences
from schemas.errors import UserError
from tests.listeners import open_to_others
from tests.rlcore.learner.samples import assert_same_weights, make_batch, weights_of

GRPO = PolicyObjective(aggregation="seq-mean-token-mean", kl_coef=0.05, entropy_coef=0.01)


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_two_ranks_train_what_one_trains(zero_stage, spec, pair, batch, learner_of):
    """Weights, gradient norm, every metric and the log-probs, whatever the stage."""
    alone = learner_of()
    group = pair.build(replace(spec, zero_stage=zero_stage, micro_batch_tokens=100))
    scores, expected_scores = group.logprobs(batch, entropy=True), alone.logprobs(batch)
    for ours, theirs in zip(scores.logprobs, expected_scores.logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    expected = alone.step([Term(batch, GRPO)], 0.1)
    found = group.step([Term(batch, GRPO)], 0.1)
    for key in expected.keys() - {"perf/padded_tokens"}:
        assert found[key] == pytest.approx(expected[key], rel=2e-5, abs=1e-6), key
    assert_same_weights(weights_of(group), weights_of(alone))


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_a_frozen_model_of_two_ranks_scores_as_one(zero_stage, spec, pair, batch, learner_of):
    """Each has all of the weights, or under ZeRO 3 a half of them."""
    frozen = replace(spec, trainable=False)
    alone = learner_of(frozen)
    group = pair.build(replace(frozen, zero_stage=zero_stage, offload_optimizer=True))
    weights = sum(parameter.numel() for parameter in alone._engine.lm.parameters())
    share = weights if zero_stage == 1 else -(-weights // 2)
    assert pair.elements() == pytest.approx(share, rel=0.05)
    for asked in (batch, make_batch(1, seed=4)):  # of the second one rank gets nothing
        found, expected = group.logprobs(asked, entropy=True), alone.logprobs(asked, entropy=True)
        for name in ("logprobs", "entropies"):
            for ours, theirs in zip(getattr(found, name), getattr(expected, name), strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert group.stamp().digest == alone.stamp().digest


def test_a_rank_needs_neither_cluster_nor_workflow(spec, pair):
    """The computing part runs where Ray, vLLM and Prefect are not installed."""
    pair.build(spec)
    assert not pair.modules() & {"ray", "vllm", "prefect", "wandb", "duckdb"}


def test_ranks_of_one_machine_listen_on_loopback_only(spec, pair):
    """gloo and torch's TCP store have no authentication."""
    pair.build(spec)
    assert open_to_others() == set()


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_rank_without_work_takes_part(zero_stage, spec, pair, learner_of):
    """Fewer sequences than ranks: the idle rank must neither hang the others nor add gradient."""
    single, alone = make_batch(1, seed=4), learner_of()
    group = pair.build(replace(spec, zero_stage=zero_stage))
    assert len(group.logprobs(single).logprobs) == 1
    expected, found = alone.step([Term(single, GRPO)], 0.1), group.step([Term(single, GRPO)], 0.1)
    assert found["actor/pg_loss"] == pytest.approx(expected["actor/pg_loss"], rel=1e-5)
    assert_same_weights(weights_of(group), weights_of(alone))


@pytest.mark.parametrize("rows", [1, 3])
def test_a_last_batch_of_few_rows_is_shared(rows, spec, value_dir, pair, learner_of):
    """SFT and the reward model end an epoch with the rows that are left, down to one."""
    few = make_batch(rows, seed=4)
    alone, group = learner_of(), pair.build(spec)
    for who in (alone, group):
        who.step([Term(few, SftObjective())], 0.1)
    assert_same_weights(weights_of(group), weights_of(alone))
    twice = few.take(np.repeat(np.arange(rows), 2))
    ranked = ranked_sequences(twice, np.arange(2 * rows) % 2, np.arange(2 * rows) // 2)
    scoring = replace(spec, head="value", model_dir=str(value_dir))
    alone, group = learner_of(scoring), pair.build(scoring)
    for who in (alone, group):
        who.step([Term(ranked, PreferenceObjective())], 0.1)
    assert_same_weights(weights_of(group), weights_of(alone))


@pytest.mark.parametrize("num_pairs", [1, 5])
def test_preference_of_two_ranks(num_pairs, spec, pair, learner_of):
    """DPO's pairs stay on one rank, KTO's responses may be apart; every mean is over the step."""
    rows = make_batch(2 * num_pairs, seed=4)
    side = [np.full(n, i % 2 + 1.0, np.float32) for i, n in enumerate(rows.lengths.tolist())]
    per_token = {**rows.per_token, "ranks": side, "desirable": [2.0 - row for row in side]}
    rows = replace(rows, per_token=per_token, groups=np.arange(2 * num_pairs) // 2)
    dpo = DpoObjective(num_pairs, label_smoothing=0.1, rpo_alpha=0.5)
    kto = KtoObjective(0.2, (num_pairs, num_pairs))
    for objective in (dpo, kto):
        alone, group = learner_of(), pair.build(replace(spec, micro_batch_tokens=100))
        expected, found = (who.step([Term(rows, objective)], 0.1) for who in (alone, group))
        assert found.keys() == expected.keys()
        for key in expected.keys() - {"perf/padded_tokens"}:
            assert found[key] == pytest.approx(expected[key], rel=2e-5, abs=1e-6), key
        assert_same_weights(weights_of(group), weights_of(alone))


def test_a_critic_of_two_ranks(spec, value_dir, pair, batch, learner_of):
    """Values come back in the order asked; a rank without work waits in lockstep."""
    critic = replace(spec, head="value", model_dir=str(value_dir), zero_stage=3)
    alone, group = learner_of(critic, zero_stage=1), pair.build(critic)
    for targets in ("loss_mask", "last"):
        found, expected = (who.values(batch, targets=targets) for who in (group, alone))
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
    single = Term(make_batch(1, seed=4), ValueObjective())
    assert group.step([single], 0.1)["critic/vf_loss"] == pytest.approx(
        alone.step([single], 0.1)["critic/vf_loss"], rel=1e-5
    )
    assert_same_weights(weights_of(group), weights_of(alone))


def test_bad_share_of_one_rank_ends_all_with_its_sentence(spec, pair, batch):
    """An error on one rank must not leave the other waiting in a collective."""
    group = pair.build(replace(spec, micro_batch_tokens=60))
    long = Sequences([np.zeros(70, np.int32)], [np.arange(70) > 0])
    fields = {name: [np.zeros(70, np.float32)] for name in batch.per_token}
    both = Sequences(
        [*batch.token_ids, *long.token_ids],
        [*batch.loss_mask, *long.loss_mask],
        {name: [*rows, *fields[name]] for name, rows in batch.per_token.items()},
    )
    with pytest.raises(UserError, match="a packed row has 70 tokens and a micro-batch at most 60"):
        group.step([Term(both, GRPO)], 0.1)
    assert group.step([Term(batch, GRPO)], 0.1)["actor/skipped_steps"] == 0.0


@pytest.mark.slow
def test_resume_of_two_ranks_is_bit_exact(spec, pair, tmp_path):
    """New processes, shards loaded per rank: the next update gives the same weights bit for bit."""
    layouts = ((1, "float32"), (3, "float32"), (1, "bfloat16"))
    specs = {
        f"ZeRO {stage}, {dtype}": replace(spec, zero_stage=stage, dtype=dtype, eps=1e-8)
        for stage, dtype in layouts
    }
    requests = [
        UpdateRequest(version, f"batch {version}", [[Term(make_batch(9, version), GRPO)]], [0.01])
        for version in range(2)
    ]
    expected = {}
    for stage, stage_spec in specs.items():
        group = pair.build(stage_spec)
        first = group.update(requests[0])
        group.save(tmp_path / str(stage))
        group.update(requests[1])
        expected[stage] = (first, group.stamp())
    pair.stop()
    for stage, stage_spec in specs.items():
        resumed = pair.build(stage_spec)
        resumed.load(tmp_path / str(stage))
        first = resumed.update(requests[0])
        resumed.update(requests[1])
        assert (first, resumed.stamp()) == expected[stage], stage
