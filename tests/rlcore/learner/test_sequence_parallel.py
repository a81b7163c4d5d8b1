"""Ranks that divide the tokens of each row must train what one rank trains."""

from dataclasses import replace

import numpy as np
import pytest
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlcore.algorithms.objective import PolicyObjective
from rlcore.learner.pool import LearnerPool
from rlcore.learner.spec import Term
from rlcore.models.packing import Sequences
from schemas.errors import UserError
from schemas.model import Adapter
from tests.rlcore.learner.algorithms import algorithm_batch, terms_of
from tests.rlcore.learner.architectures import LEAKING, NO_SDPA, SEPARATING, write_architecture
from tests.rlcore.learner.conftest import Waited
from tests.rlcore.learner.rank_process import start_ranks
from tests.rlcore.learner.samples import VOCABULARY, assert_same_weights, make_batch, weights_of

GRPO = PolicyObjective(aggregation="seq-mean-token-mean", kl_coef=0.05, entropy_coef=0.01)
REFUSAL = "hardware.learner.sequence_parallel = 2"


def assert_steps_alike(group, alone, terms) -> None:
    expected, found = alone.step(terms, 0.1), group.step(terms, 0.1)
    for key in expected.keys() - {"perf/padded_tokens"}:
        assert found[key] == pytest.approx(expected[key], rel=2e-5, abs=1e-6), key
    assert_same_weights(weights_of(group), weights_of(alone))


def assert_scores_alike(group, alone, batch) -> None:
    found, expected = group.logprobs(batch, entropy=True), alone.logprobs(batch, entropy=True)
    for name in ("logprobs", "entropies"):
        for ours, theirs in zip(getattr(found, name), getattr(expected, name), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_two_ranks_divide_what_one_trains(zero_stage, spec, pair, batch, learner_of):
    """Rows of an odd width hold several documents, and the cut goes through some. ZeRO 2 of
    DeepSpeed's own loss code sums such gradients twice."""
    alone = learner_of()
    group = pair.build(replace(spec, zero_stage=zero_stage, row_tokens=67, sequence_parallel=2))
    assert_scores_alike(group, alone, batch)
    assert_steps_alike(group, alone, [Term(batch, GRPO)])


@pytest.mark.slow
def test_every_algorithm(algorithm, suited_spec, suited_learner, pair):
    """Losses over whole sequences and groups see the tokens of all ranks."""
    terms, alone = terms_of(algorithm, algorithm_batch()), suited_learner()
    assert_steps_alike(pair.build(replace(suited_spec, sequence_parallel=2)), alone, terms)


@pytest.mark.parametrize(
    "changes",
    [{"gradient_checkpointing": True}, {"adapter": Adapter(rank=4)}, {"ema": 0.9}],
    ids=["checkpointing", "adapter", "average"],
)
def test_what_else_a_learner_does(changes, spec, pair, batch, learner_of):
    group = pair.build(replace(spec, sequence_parallel=2, **changes))
    assert_steps_alike(group, learner_of(spec, **changes), [Term(batch, GRPO)])


def test_a_sequence_of_one_answer_and_one_of_a_token(spec, pair, learner_of):
    """A rank may have no target of a pass, or padding only."""
    ids = [np.arange(3, dtype=np.int32), np.arange(41, dtype=np.int32)]
    masks = [np.arange(3) == 2, np.arange(41) == 1]
    batch = Sequences(ids, masks)
    group, alone = pair.build(replace(spec, sequence_parallel=2, zero_stage=3)), learner_of()
    assert_scores_alike(group, alone, batch)


def test_one_head_of_keys_serves_all_ranks(spec, pair, batch, learner_of, tmp_path):
    """Multi-query attention: each rank has its own copy."""
    write_heads(tmp_path, heads=4, shared=1)
    single = replace(spec, model_dir=str(tmp_path))
    group = pair.build(replace(single, sequence_parallel=2))
    assert_steps_alike(group, learner_of(single), [Term(batch, GRPO)])


def test_heads_that_ranks_cannot_divide(spec, pair, tmp_path):
    write_heads(tmp_path, heads=3, shared=3)
    with pytest.raises(UserError, match=f"{REFUSAL} does not divide the 3 attention heads and 3"):
        pair.build(replace(spec, model_dir=str(tmp_path), sequence_parallel=2))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SEPARATING, *LEAKING])
def test_other_architectures_are_alike_or_refused(name, spec, pair, learner_of, batch, tmp_path):
    """A window, a state or positions of its own do not survive the cut."""
    write_architecture(tmp_path, name)
    attention = "eager" if name in NO_SDPA else "auto"
    other = replace(spec, model_dir=str(tmp_path), attn_implementation=attention)
    try:
        group = pair.build(replace(other, sequence_parallel=2))
    except UserError as refusal:
        assert str(refusal).startswith(REFUSAL)  # noqa: PT017 - either way is right
        assert name not in {"Qwen2", "Qwen3", "Llama", "Gemma", "GPT2"}
        return
    assert_scores_alike(group, learner_of(other), batch)
    assert_steps_alike(group, learner_of(other), [Term(batch, GRPO)])


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [1, 3])
def test_two_groups_of_two(zero_stage, spec, batch, learner_of):
    """Four ranks are two shares of the batch, one of which may be empty."""
    ranks = start_ranks(4)
    try:
        divided = replace(spec, zero_stage=zero_stage, sequence_parallel=2)
        for pending in [rank.start("build", divided) for rank in ranks]:
            pending.result(240)
        group = Waited(LearnerPool(ranks, timeout_s=120, sequence_parallel=2))
        for each in (batch, make_batch(1, seed=4)):
            assert_scores_alike(group, learner_of(), each)
        assert_steps_alike(group, learner_of(), [Term(batch, GRPO)])
    finally:
        for rank in ranks:
            rank.stop()


def write_heads(path, *, heads: int, shared: int) -> None:
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=8 * heads,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        intermediate_size=48,
        max_position_embeddings=128,
        pad_token_id=0,
    )
    Qwen2ForCausalLM(config).save_pretrained(path)
    (path / "tokenizer.json").write_text("{}")
