"""The invariants of docs/understand/algorithms.md on the real learner, for each objective."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlcore.algorithms.objective import PolicyObjective, SftObjective
from rlcore.learner.spec import Term
from rlcore.models import logprobs
from tests.rlcore.learner.algorithms import (
    ALGORITHMS,
    PTX_COEF,
    SEQUENCE,
    algorithm_batch,
    poisoned,
    shuffled,
    terms_of,
)
from tests.rlcore.learner.samples import (
    assert_same_weights,
    gradient_of,
    make_batch,
    reference_step,
    weights_of,
)


def assert_same_metrics(found: dict[str, float], expected: dict[str, float]) -> None:
    assert found.keys() == expected.keys()
    for key in expected.keys() - {"perf/padded_tokens"}:
        assert found[key] == pytest.approx(expected[key], rel=2e-5, abs=1e-6), key


def test_a_step_is_that_of_hugging_face_and_torch(algorithm, suited_spec, suited_learner):
    """Packing, chunks, weights and DeepSpeed change the arithmetic's order and nothing else."""
    terms = terms_of(algorithm, algorithm_batch())
    expected, norm = reference_step(suited_spec, terms, 0.1)
    learner = suited_learner()
    metrics = learner.step(terms, 0.1)
    name = terms[0].objective.name
    assert norm > 1e-3, "nothing to compare"
    assert metrics[f"{name}/grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert metrics[f"{name}/zero_gradient_steps"] == 0.0
    assert_same_weights(weights_of(learner), expected)


LAYOUTS = {
    "many passes": {"micro_batch_tokens": 160},
    "long rows": {"micro_batch_tokens": 200, "row_tokens": 200},
    "zero 3": {"zero_stage": 3, "micro_batch_tokens": 160},
}


def test_layout_and_order_do_not_change_a_step(algorithm, suited_learner):
    """Micro-batches, rows and padding, row order and stage are no hyperparameters."""
    terms, plain = terms_of(algorithm, algorithm_batch()), suited_learner()
    expected = plain.step(terms, 0.1)
    weights = weights_of(plain)
    for layout in LAYOUTS.values():
        other = suited_learner(**layout)
        assert_same_metrics(other.step(shuffled(terms), 0.1), expected)
        assert_same_weights(weights_of(other), weights)


@pytest.mark.parametrize(
    ("algorithm", "zero_stage"),
    [*((name, 1) for name in ALGORITHMS), ("full kl", 3), ("reward model", 3), ("ppo-ptx", 3)],
)
def test_two_ranks_train_what_one_trains(algorithm, zero_stage, suited_spec, suited_learner, pair):
    """Groups and counts span the ranks, and one rank's idle passes add nothing."""
    terms, alone = terms_of(algorithm, algorithm_batch()), suited_learner()
    group = pair.build(replace(suited_spec, zero_stage=zero_stage, micro_batch_tokens=160))
    assert_same_metrics(group.step(terms, 0.1), alone.step(terms, 0.1))
    assert_same_weights(weights_of(group), weights_of(alone))


@pytest.mark.parametrize("algorithm", ["grpo", "full kl"])
def test_ranks_that_cut_logits_unequally_train_what_one_trains(
    algorithm, suited_spec, suited_learner, pair
):
    """A large vocabulary under ZeRO 3: each chunk gathers the head, and with ragged rows one rank
    has more chunks than the other; unequal counts hang, or mix up what is gathered."""
    terms, alone = terms_of(algorithm, algorithm_batch()), suited_learner()
    with pair.chunked(61 * 5):
        group = pair.build(replace(suited_spec, zero_stage=3, micro_batch_tokens=160))
        assert_same_metrics(group.step(terms, 0.1), alone.step(terms, 0.1))
        assert_same_weights(weights_of(group), weights_of(alone))


@pytest.mark.parametrize("poison", [np.nan, pytest.param(1e9, marks=pytest.mark.slow)])
def test_nothing_outside_the_mask_matters(poison, algorithm, suited_learner):
    """Nothing outside the mask changes a step, bit for bit."""
    terms, plain, other = terms_of(algorithm, algorithm_batch()), suited_learner(), suited_learner()
    assert other.step(poisoned(terms, poison), 0.1) == plain.step(terms, 0.1)
    assert other.stamp() == plain.stamp()


FIRST_UPDATES = {
    "ppo": PolicyObjective(),
    "grpo": PolicyObjective(aggregation=SEQUENCE),
    "dapo": PolicyObjective(clip_high=0.28, clip_dual=10.0, temperature=0.7),
    "gspo": PolicyObjective(
        ratio_level="sequence",
        aggregation=SEQUENCE,
        clip_low=3e-4,
        clip_high=4e-4,
        clip_dual=None,
    ),
}


@pytest.mark.parametrize("name", FIRST_UPDATES)
def test_the_first_update_is_the_policy_gradient(name, learner_of, tmp_path):
    """Ratio 1, nothing clipped, gradient -A grad log p, with recorded log-probs or
    without; noise between scoring and training would fill GSPO's whole clip band.

    Recorded log-probs are of another pass: a CPU may round it differently, by far less than 3e-4.
    """
    objective, exact = FIRST_UPDATES[name], {"grad_clip": None, "weight_decay": 0.0}
    batch = algorithm_batch()
    recorded = learner_of(**exact).logprobs(batch, objective.temperature, targets="loss_mask")
    fresh = replace(batch, per_token={**batch.per_token, "old_logprobs": recorded.logprobs})
    plain = replace(objective, policy_loss="reinforce", ratio_level="token")
    expected = gradient_of(learner_of(**exact), [Term(fresh, plain)])
    for term in (Term(fresh, objective), Term(batch, replace(objective, on_policy=True))):
        metrics = learner_of(**exact).step([term], 0.0)
        assert metrics["actor/ratio_max"] == pytest.approx(1.0, abs=1e-5)
        assert metrics["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-5)
        assert metrics["actor/pg_clipfrac"] == 0.0
        assert_same_weights(gradient_of(learner_of(**exact), [term]), expected)


def test_terms_add_their_gradients(learner_of, tmp_path):
    """PPO-ptx: g = g_PPO + coef x g_LM, each with its own denominators."""
    exact = {"grad_clip": None, "weight_decay": 0.0}
    terms = terms_of("ppo-ptx", algorithm_batch())
    parts = [gradient_of(learner_of(**exact), [replace(term, coef=1.0)]) for term in terms]
    both = gradient_of(learner_of(**exact, micro_batch_tokens=100), terms)
    expected = {name: part + PTX_COEF * parts[1][name] for name, part in parts[0].items()}
    assert_same_weights(both, expected)
    metrics = learner_of().step(terms, 0.1)
    alone = learner_of().step([Term(terms[1].sequences, SftObjective(name="ptx"))], 0.1)
    assert metrics["ptx/loss"] == pytest.approx(alone["ptx/loss"], rel=1e-6)
    assert metrics["actor/grad_norm"] > 0
    assert "ptx/grad_norm" not in metrics


def test_terms_of_one_name_are_refused(learner_of, batch):
    """Their metrics would be added up under one name."""
    term = Term(batch, SftObjective())
    for terms in ([term, term], []):
        with pytest.raises(AssertionError, match="each with its own name"):
            learner_of().step(terms, 0.1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_full_kl_is_the_sum_over_the_vocabulary(
    temperature, learner_of, model_dir, reference_dir, monkeypatch
):
    """Exact in any chunk of a large vocabulary; 0 against the policy itself."""
    from transformers import AutoModelForCausalLM

    batch = make_batch(4)
    models = [
        AutoModelForCausalLM.from_pretrained(path).eval() for path in (model_dir, reference_dir)
    ]
    learner = learner_of(reference_dir=str(reference_dir))
    whole = learner.logprobs(batch, temperature, entropy=True, full_kl=True)
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", 61 * 3)
    chunked = learner.logprobs(batch, temperature, entropy=True, full_kl=True)
    for row, ids in enumerate(batch.token_ids):
        tokens = torch.from_numpy(ids).long()[None]
        with torch.no_grad():
            policy, reference = (
                torch.softmax(model(tokens).logits[0, :-1].double() / temperature, -1)
                for model in models
            )
        expected = (policy * (policy / reference).log()).sum(-1).numpy()
        np.testing.assert_allclose(whole.kls[row][1:], expected, rtol=1e-4, atol=1e-6)
        assert whole.kls[row][0] == 0.0
        np.testing.assert_allclose(chunked.kls[row], whole.kls[row], rtol=2e-6, atol=1e-6)
        np.testing.assert_allclose(chunked.entropies[row], whole.entropies[row], rtol=2e-6)
    itself = learner_of(reference_dir=str(model_dir)).logprobs(batch, full_kl=True)
    # Two forward passes over two copies of the weights: a CPU may round them differently.
    np.testing.assert_allclose(np.concatenate(itself.kls), 0.0, atol=1e-5)


def test_full_kl_in_the_loss_may_be_chunked(learner_of, reference_dir, monkeypatch):
    """The recomputing path of large vocabularies takes the same step."""
    terms = terms_of("full kl", algorithm_batch())
    stepped = []
    for limit in (2**26, 61 * 4):
        monkeypatch.setattr(logprobs, "CHUNK_LOGITS", limit)
        learner = learner_of(reference_dir=str(reference_dir))
        learner.step(terms, 0.1)
        stepped.append(weights_of(learner))
    assert_same_weights(*stepped)


@pytest.mark.parametrize("zero_stage", [0, 1, 3])
def test_a_large_vocabulary_takes_the_step_of_a_small_one(zero_stage, learner_of, monkeypatch):
    """In blocks of the tied head's weight, or by the module that gathers it."""
    objective = PolicyObjective(kl_coef=0.05, entropy_coef=0.01, temperature=0.7)
    terms = [Term(algorithm_batch(), objective)]
    stepped = []
    for limit in (2**26, 61 * 4):
        monkeypatch.setattr(logprobs, "CHUNK_LOGITS", limit)
        monkeypatch.setattr(logprobs, "BLOCK_LOGITS", limit)
        learner = learner_of(zero_stage=zero_stage)
        learner.step(terms, 0.1)
        stepped.append(weights_of(learner))
    assert_same_weights(*stepped)


def test_a_reference_is_neither_trained_nor_published(learner_of, reference_dir, tmp_path):
    """The KL is to where training started, and engines must not load two models."""
    holding, plain = learner_of(reference_dir=str(reference_dir)), learner_of()
    assert holding.stamp() == plain.stamp()
    batch = make_batch(4)
    before = holding.logprobs(batch, full_kl=True)
    sizes = []
    for name, learner in (("holding", holding), ("plain", plain)):
        learner.save(tmp_path / name)
        files = (path for path in (tmp_path / name).rglob("*") if path.is_file())
        sizes.append(sum(path.stat().st_size for path in files))
    assert sizes[0] < 1.05 * sizes[1], "a checkpoint carries the reference along"
    holding.step([Term(batch, SftObjective())], 0.5)
    holding.load(tmp_path / "holding")
    after = holding.logprobs(batch, full_kl=True)
    np.testing.assert_allclose(np.concatenate(after.kls), np.concatenate(before.kls), atol=1e-5)


def test_rows_without_loss_tokens_are_scored_as_zeros(learner_of, value_dir):
    """Truncated or aborted responses stay in the batch, wherever their share of it lands."""
    batch = make_batch(3)
    empty = replace(batch, loss_mask=[np.zeros_like(mask) for mask in batch.loss_mask])
    scores = learner_of().logprobs(empty, targets="loss_mask", entropy=True)
    values = learner_of(head="value", model_dir=str(value_dir)).values(empty)
    for rows in (scores.logprobs, scores.entropies, values):
        assert [len(row) for row in rows] == batch.lengths.tolist()
        assert not np.concatenate(rows).any()


def test_skipped_rows_keep_those_that_the_positive_loss_reads(learner_of):
    """A correct answer in a group of correct answers has advantage 0 and still teaches."""
    batch = algorithm_batch()
    nothing = [np.zeros_like(row) for row in batch.per_token["advantages"]]
    batch = replace(batch, per_token={**batch.per_token, "advantages": nothing})
    objective = PolicyObjective(clip_high=0.28, nll_coef=0.5)
    plain, skipping = learner_of(), learner_of()
    whole = plain.step([Term(batch, objective)], 0.1)
    part = skipping.step([Term(batch, replace(objective, skip_zero_advantage=True))], 0.1)
    assert part["perf/trained_tokens"] < whole["perf/trained_tokens"]
    assert part["actor/positive_nll"] == pytest.approx(whole["actor/positive_nll"], rel=1e-5)
    assert part["actor/pg_loss"] == 0.0
    assert_same_weights(weights_of(skipping), weights_of(plain))
