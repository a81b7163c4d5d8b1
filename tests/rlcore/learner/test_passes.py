"""One optimizer step: what must not change it, and what it must equal."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlcore.algorithms.objective import PolicyObjective, SftObjective
from rlcore.learner.passes import Passes, StepReport, over_ranks, over_steps
from rlcore.learner.spec import Term
from rlcore.models.packing import Sequences
from schemas.errors import UserError
from tests.rlcore.learner.samples import (
    VOCABULARY,
    assert_same_weights,
    make_batch,
    reference_step,
    weights_of,
)

GRPO_BARE = PolicyObjective()
GRPO = PolicyObjective(aggregation="seq-mean-token-mean", kl_coef=0.05, entropy_coef=0.01)

LAYOUTS = {
    "many passes": {"micro_batch_tokens": 41},
    "long rows": {"row_tokens": 130},
    "one long row": {"row_tokens": 400},
    "zero 0": {"zero_stage": 0},
    "zero 2": {"zero_stage": 2, "micro_batch_tokens": 90},
    "zero 3": {"zero_stage": 3, "micro_batch_tokens": 90},
    "offload": {"zero_stage": 2, "offload_optimizer": True},
    "offload all": {"zero_stage": 3, "offload_optimizer": True, "offload_params": True},
    "checkpointing": {"gradient_checkpointing": True},
    "eager": {"attn_implementation": "eager"},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_does_not_change_the_step(name, batch, learner_of):
    """Hardware settings must not be hyperparameters."""
    plain, other = learner_of(), learner_of(**LAYOUTS[name])
    metrics = plain.step([Term(batch, GRPO)], 0.1)
    found = other.step([Term(batch, GRPO)], 0.1)
    for key in metrics.keys() - {"perf/padded_tokens"}:
        assert found[key] == pytest.approx(metrics[key], rel=2e-5, abs=1e-6), key
    assert_same_weights(weights_of(other), weights_of(plain))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_answers_that_share_their_prompt_train_as_whole_sequences(
    checkpointing, spec, learner_of, monkeypatch
):
    """Log-probs and an optimizer step equal those of Hugging Face, a sequence at a time, while
    half of the tokens are computed."""
    batch = answers_to(prompts=3, answers=6)
    wide, seen = learner_of(micro_batch_tokens=512, gradient_checkpointing=checkpointing), []
    outputs = Passes.outputs
    monkeypatch.setattr(
        Passes, "outputs", lambda self, each, **how: seen.append(each) or outputs(self, each, **how)
    )
    logprobs = wide.logprobs(batch, targets="loss_mask").logprobs
    computed = sum(each.input_ids.size for each in seen)
    assert computed < 0.6 * batch.num_tokens
    assert sum(each.num_tokens for each in seen) == batch.num_tokens
    alone = learner_of(micro_batch_tokens=512, attn_implementation="eager")  # does not share
    for ours, theirs in zip(
        logprobs, alone.logprobs(batch, targets="loss_mask").logprobs, strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    expected, norm = reference_step(spec, [Term(batch, GRPO_BARE)], 0.1)
    metrics = wide.step([Term(batch, GRPO_BARE)], 0.1)
    assert metrics["actor/grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert_same_weights(weights_of(wide), expected)


def answers_to(prompts: int, answers: int) -> Sequences:
    """Answers of 2 to 8 tokens to prompts of 9 tokens and more, in an order that mixes them."""
    generator = np.random.default_rng(4)
    asked = [generator.integers(0, VOCABULARY, 9 + 3 * number) for number in range(prompts)]
    of_row = generator.permutation(np.repeat(np.arange(prompts), answers))
    said = [generator.integers(0, VOCABULARY, generator.integers(2, 9)) for _ in of_row]
    ids = [
        np.concatenate([asked[p], s]).astype(np.int32) for p, s in zip(of_row, said, strict=True)
    ]
    masks = [np.arange(len(row)) >= len(asked[p]) for p, row in zip(of_row, ids, strict=True)]
    fields = {
        name: [generator.normal(-4, 1, len(row)).astype(np.float32) for row in ids]
        for name in ("advantages", "old_logprobs", "rollout_logprobs")
    }
    return Sequences(ids, masks, fields, groups=of_row)


def test_skipping_rows_without_advantage_changes_only_the_work(batch, learner_of):
    """Normalisers count skipped rows, so the gradient is the same and the passes are fewer."""
    rows = batch.per_token["advantages"]
    advantages = [row * (index % 3 == 0) for index, row in enumerate(rows)]
    batch = replace(batch, per_token={**batch.per_token, "advantages": advantages})
    plain, skipping = learner_of(), learner_of()
    objective = PolicyObjective()
    whole = plain.step([Term(batch, objective)], 0.1)
    part = skipping.step([Term(batch, replace(objective, skip_zero_advantage=True))], 0.1)
    assert part["perf/trained_tokens"] < whole["perf/trained_tokens"]
    assert part["actor/pg_loss"] == pytest.approx(whole["actor/pg_loss"], rel=1e-5)
    assert_same_weights(weights_of(skipping), weights_of(plain))


def test_a_batch_of_constant_groups_has_zero_gradient_and_says_so(batch, learner_of):
    """An update that teaches nothing must show up in the metrics."""
    nothing = [np.zeros_like(row) for row in batch.per_token["advantages"]]
    batch = replace(batch, per_token={**batch.per_token, "advantages": nothing})
    metrics = learner_of().step([Term(batch, PolicyObjective(skip_zero_advantage=True))], 0.1)
    assert metrics["actor/zero_gradient_steps"] == 1.0
    assert metrics["actor/grad_norm"] == 0.0


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_non_finite_gradient_skips_the_step(zero_stage, batch, learner_of):
    """One bad batch must not poison weights or optimizer state."""
    learner, untouched = learner_of(zero_stage=zero_stage), learner_of(zero_stage=zero_stage)
    before = learner.stamp()
    bad = [row.copy() for row in batch.per_token["advantages"]]
    bad[3][-1] = np.nan
    bad_batch = replace(batch, per_token={**batch.per_token, "advantages": bad})
    metrics = learner.step([Term(bad_batch, PolicyObjective())], 0.1)
    assert metrics["actor/skipped_steps"] == 1.0
    assert learner.stamp() == before
    for after in (learner, untouched):
        assert after.step([Term(batch, PolicyObjective())], 0.1)["actor/skipped_steps"] == 0.0
    assert_same_weights(weights_of(learner), weights_of(untouched), 0.0)


def test_sft_loss_is_hugging_faces_cross_entropy(spec, learner_of):
    """Response tokens only, global token mean."""
    from transformers import AutoModelForCausalLM

    batch = make_batch(1, seed=5)
    labels = torch.from_numpy(np.where(batch.loss_mask[0], batch.token_ids[0], -100)).long()[None]
    model = AutoModelForCausalLM.from_pretrained(spec.model_dir).eval()
    ids = torch.from_numpy(batch.token_ids[0]).long()[None]
    expected = model(input_ids=ids, labels=labels).loss.item()
    assert learner_of().step([Term(batch, SftObjective())], 0.1)["sft/loss"] == pytest.approx(
        expected, abs=1e-6
    )


def test_repeated_steps_learn(batch, learner_of):
    """End to end: the loss of one batch goes down."""
    learner = learner_of(eps=1e-8, grad_clip=1.0)
    losses = [learner.step([Term(batch, SftObjective())], 1e-2)["sft/loss"] for _ in range(10)]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_bf16_steps_close_to_fp32(zero_stage, batch, learner_of):
    plain, half = learner_of(), learner_of(dtype="bfloat16", zero_stage=zero_stage)
    expected = plain.step([Term(batch, SftObjective())], 0.1)
    for micro_batch_tokens in (4096, 90):
        found = learner_of(
            dtype="bfloat16", zero_stage=zero_stage, micro_batch_tokens=micro_batch_tokens
        ).step([Term(batch, SftObjective())], 0.1)
        assert found["sft/loss"] == pytest.approx(expected["sft/loss"], rel=0.01)
        assert found["sft/grad_norm"] == pytest.approx(expected["sft/grad_norm"], rel=0.03)
    half.step([Term(batch, SftObjective())], 0.1)
    state = {name: tensor.float() for name, tensor in weights_of(half).items()}
    assert_same_weights(state, weights_of(plain), 0.01)


def test_bad_batches_are_reported(batch, learner_of):
    learner = learner_of(micro_batch_tokens=45)
    poor = replace(batch, per_token={"advantages": batch.per_token["advantages"]})
    with pytest.raises(UserError, match=r"reads per_token\['rollout_logprobs'\]"):
        learner.step([Term(poor, PolicyObjective())], 0.1)
    empty = replace(batch, loss_mask=[np.zeros_like(mask) for mask in batch.loss_mask])
    with pytest.raises(UserError, match="no token to train on"):
        learner.step([Term(empty, SftObjective())], 0.1)
    long = Sequences([np.zeros(50, np.int32)], [np.arange(50) > 0])
    with pytest.raises(UserError, match=r"raise hardware\.learner\.micro_batch_tokens"):
        learner.step([Term(long, SftObjective())], 0.1)


def test_ranks_add_their_shares_of_a_mean_and_keep_the_largest_maximum() -> None:
    """Means are normalised over all ranks before: averaged again, two ranks would report half."""
    found = over_ranks(
        [
            StepReport({"loss": 0.25}, {"ratio_max": 1.5}, {"tokens": 10}),
            StepReport({"loss": 0.5}, {"ratio_max": 1.25}, {"tokens": 30}),
        ]
    )
    assert found.flat() == {"loss": 0.75, "ratio_max": 1.5, "tokens": 40.0}


def test_steps_average_their_means_and_add_their_counts() -> None:
    found = over_steps(
        [
            StepReport({"loss": 1.0}, {"ratio_max": 1.5}, {"skipped": 0}),
            StepReport({"loss": 2.0}, {"ratio_max": 1.25}, {"skipped": 1}),
        ]
    )
    assert found.flat() == {"loss": 1.5, "ratio_max": 1.5, "skipped": 1.0}


def test_a_metric_of_some_steps_is_averaged_over_those() -> None:
    """A term that only every other step has is not half as large for that."""
    found = over_steps([StepReport({"loss": 1.0, "ptx": 4.0}), StepReport({"loss": 3.0})])
    assert found.means == {"loss": 2.0, "ptx": 4.0}


@pytest.mark.parametrize("combine", [over_ranks, over_steps])
def test_nothing_to_report_is_an_empty_report(combine) -> None:
    assert combine([]).flat() == {}
