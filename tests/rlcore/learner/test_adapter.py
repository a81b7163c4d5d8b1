"""An adapter is trained in place of the weights, and everybody else sees the merged model."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlcore.algorithms.objective import PolicyObjective, ValueObjective
from rlcore.algorithms.objective_types import Objective
from rlcore.learner.learner import Learner
from rlcore.learner.spec import LearnerSpec, Term
from rlcore.models.adapter import check_adapter
from rlcore.models.weight_files import read_state
from rlcore.store.checks import file_digest
from schemas.errors import UserError
from schemas.model import Adapter
from tests.architectures import write_model
from tests.rlcore.learner.samples import (
    assert_same_weights,
    make_batch,
    request_of,
    weights_of,
)

GRPO = PolicyObjective(aggregation="seq-mean-token-mean")
EXACT = PolicyObjective(aggregation="seq-mean-token-mean", kl_coef=0.3, kl_estimator="full")
LORA = Adapter(rank=4, alpha=8.0)


def trained(learner: Learner, steps: int = 2, objective: Objective = GRPO) -> Learner:
    for step in range(steps):
        learner.step([Term(make_batch(6, step), objective)], 0.1)
    return learner


@pytest.fixture
def lora(spec):
    return replace(spec, adapter=LORA, eps=1e-8)


def test_it_begins_as_the_base_bit_for_bit(spec, lora, learner_of, batch):
    base, adapted = learner_of(spec), learner_of(lora)
    assert adapted.stamp() == base.stamp()
    found, expected = (who.logprobs(batch).logprobs for who in (adapted, base))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("zero_stage", [0, 1, 2])
def test_a_step_moves_every_target_and_nothing_else(zero_stage, spec, lora, learner_of):
    learner = learner_of(lora, zero_stage=zero_stage)
    before = weights_of(learner)
    held = {n: p.clone() for n, p in learner._engine.lm.named_parameters()}
    trained(learner)
    moved = {n for n, tensor in weights_of(learner).items() if not torch.equal(tensor, before[n])}
    kinds = ("q", "k", "v", "o", "gate", "up", "down")
    assert moved == {n for n in before if n.endswith(tuple(f"{k}_proj.weight" for k in kinds))}
    for name, parameter in learner._engine.lm.named_parameters():
        assert torch.equal(parameter, held[name]) == ("lora_" not in name), name


def test_only_named_layers_are_adapted(lora, learner_of):
    adapter = LORA.model_copy(update={"targets": ("q_proj",)})
    learner = learner_of(replace(lora, adapter=adapter))
    before = weights_of(learner)
    after = weights_of(trained(learner))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (0, 1)}


def test_the_merged_model_is_the_trained_one(lora, model_dir, learner_of, batch, tmp_path):
    """In log-probs, loaded by transformers, and by peft over the untouched base."""
    from peft import PeftModel

    learner = trained(learner_of(lora))
    learner.export_hf(tmp_path / "model")
    expected = learner.logprobs(batch).logprobs
    base = AutoModelForCausalLM.from_pretrained(model_dir)
    models = [
        AutoModelForCausalLM.from_pretrained(tmp_path / "model"),
        PeftModel.from_pretrained(base, str(tmp_path / "adapter")),
    ]
    for model in models:
        for row, ids in enumerate(batch.token_ids):
            tokens = torch.from_numpy(ids).long()
            with torch.no_grad():
                scores = torch.log_softmax(model.eval()(tokens[None]).logits[0], -1)
            found = scores[:-1].gather(-1, tokens[1:, None])[:, 0]
            np.testing.assert_allclose(found, expected[row][1:], atol=1e-5)
    assert read_state(model_dir / "model.safetensors").keys() == weights_of(learner).keys()


def test_a_hundred_syncs_leave_the_base_as_it_was(lora, model_dir, learner_of):
    """Merged by adding and unmerged by subtracting, it would lose its last bits; and no file of it
    is written to."""
    learner = learner_of(lora)
    files = {path.name: file_digest(path) for path in Path(model_dir).iterdir()}
    held = {
        name: parameter.detach().clone()
        for name, parameter in learner._engine.lm.named_parameters()
        if "lora" not in name
    }
    stamps = set()
    for step in range(100):
        if step % 10 == 0:
            trained(learner, steps=1)
        stamps.add(learner.publish().stamp.digest)
    assert len(stamps) == 10, "each of the ten steps changes what is sent"
    for name, parameter in learner._engine.lm.named_parameters():
        assert name not in held or torch.equal(parameter, held[name]), name
    assert {path.name: file_digest(path) for path in Path(model_dir).iterdir()} == files


def test_an_adapter_on_an_adapter_is_one_of_the_base(lora, model_dir, learner_of, tmp_path):
    """SFT's and then RL's: their factors side by side do what both do."""
    from peft import PeftModel

    first = trained(learner_of(lora))
    first.export_hf(tmp_path / "sft" / "model")
    second = trained(learner_of(replace(lora, model_dir=str(tmp_path / "sft" / "model"))), 3)
    second.export_hf(tmp_path / "rl" / "model")
    config = json.loads((tmp_path / "rl" / "adapter" / "adapter_config.json").read_text())
    assert config["r"] == 2 * LORA.rank
    base = AutoModelForCausalLM.from_pretrained(model_dir)
    merged = PeftModel.from_pretrained(base, str(tmp_path / "rl" / "adapter")).merge_and_unload()
    state = {n: t for n, t in merged.state_dict().items() if n != "lm_head.weight"}
    assert_same_weights(state, weights_of(second), 1e-6)


@pytest.mark.parametrize("rslora", [False, True])
def test_the_scale_is_that_of_the_recipe(rslora, lora, learner_of, tmp_path):
    adapter = LORA.model_copy(update={"rslora": rslora})
    learner = trained(learner_of(replace(lora, adapter=adapter)))
    learner.export_hf(tmp_path / "model")
    factors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    name = "model.layers.0.mlp.up_proj"
    down, up = (factors[f"base_model.model.{name}.lora_{x}.weight"] for x in "AB")
    base = read_state(Path(lora.model_dir) / "model.safetensors")[f"{name}.weight"]
    scale = 8.0 / (4**0.5 if rslora else 4)
    merged = weights_of(learner)[f"{name}.weight"]
    torch.testing.assert_close(merged, base + scale * up @ down, rtol=0, atol=1e-6)


@pytest.mark.parametrize("chunked", [False, True])
def test_the_reference_is_the_model_below(
    chunked, spec, lora, model_dir, learner_of, batch, monkeypatch
):
    """Its log-probs, and the exact KL with its gradient, are those of a separate copy."""
    from rlcore.models import logprobs

    if chunked:
        monkeypatch.setattr(logprobs, "CHUNK_LOGITS", 2000)
    adapted = trained(learner_of(replace(lora, reference_dir=str(model_dir))))
    base = learner_of(spec)
    before = adapted.stamp()
    found = adapted.logprobs(batch, reference=True).logprobs
    for ours, theirs in zip(found, base.logprobs(batch).logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert adapted.stamp() == before
    trained(adapted, 1, EXACT)  # after the switch its factors still learn
    assert adapted.stamp() != before
    merged = weights_of(adapted)
    copy = learner_of(spec, reference_dir=str(model_dir))
    state = copy._engine.lm.state_dict()
    with torch.no_grad():
        for name, tensor in merged.items():
            state[name].copy_(tensor)
    ours, theirs = (who.logprobs(batch, full_kl=True).kls for who in (adapted, copy))
    assert max(kl.max() for kl in ours) > 1e-4
    for found, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_at_the_start_the_kl_is_zero(lora, model_dir, learner_of, batch):
    learner = learner_of(replace(lora, reference_dir=str(model_dir)))
    assert max(kl.max() for kl in learner.logprobs(batch, full_kl=True).kls) == 0.0


@pytest.mark.slow
def test_two_ranks_train_what_one_trains(lora, pair, learner_of, batch):
    alone = trained(learner_of(lora, eps=1.0))
    for zero_stage in (0, 1, 2):
        group = pair.build(replace(lora, eps=1.0, zero_stage=zero_stage))
        for step in range(2):
            group.step([Term(make_batch(6, step), GRPO)], 0.1)
        assert_same_weights(weights_of(group), weights_of(alone))


NF4 = Adapter(rank=4, alpha=8.0, base="nf4")


@pytest.fixture
def quantised(lora):
    return replace(lora, adapter=NF4)


def logprobs_of(directory: Path, batch) -> list[np.ndarray]:
    """Of transformers, a sequence at a time; the first token has none."""
    model, rows = AutoModelForCausalLM.from_pretrained(directory).eval(), []
    for ids in batch.token_ids:
        tokens = torch.from_numpy(ids).long()
        with torch.no_grad():
            scores = torch.log_softmax(model(tokens[None]).logits[0], -1)
        rows.append(scores[:-1].gather(-1, tokens[1:, None])[:, 0].numpy())
    return rows


def test_of_a_quantised_base_engines_get_what_the_learner_computes_with(
    quantised, model_dir, learner_of, batch, tmp_path
):
    """Not the weights that it was quantised from, which are another model: the canary would see
    that."""
    learner = learner_of(quantised)
    learner.export_hf(tmp_path / "start" / "model")
    trained(learner)
    learner.export_hf(tmp_path / "end" / "model")
    expected = [row[1:] for row in learner.logprobs(batch).logprobs]
    below = [row[1:] for row in learner.logprobs(batch, reference=True).logprobs]
    for found, wanted in (("end", expected), ("start", below)):
        for ours, theirs in zip(
            logprobs_of(tmp_path / found / "model", batch), wanted, strict=True
        ):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
    original = np.concatenate(logprobs_of(model_dir, batch))
    assert np.abs(original - np.concatenate(below)).mean() > 1e-2


def test_a_quantised_base_is_small_and_keeps_its_codes(quantised, learner_of):
    learner = learner_of(quantised)
    lm = learner._engine.lm
    linear = {n: p.clone() for n, p in lm.named_parameters() if hasattr(p, "quant_state")}
    assert len(linear) == 14
    assert all(p.dtype == torch.uint8 for p in linear.values())
    trained(learner, 3)
    for name, codes in linear.items():
        assert torch.equal(dict(lm.named_parameters())[name], codes)


@pytest.mark.parametrize("zero_stage", [0, 1])
def test_a_quantised_base_continues_bit_for_bit(zero_stage, quantised, learner_of, tmp_path):
    learner = learner_of(quantised, zero_stage=zero_stage)
    learner.update(request_of(0, "a"))
    learner.save(tmp_path)
    after = learner.update(request_of(1, "b", seed=5))
    resumed = learner_of(quantised, zero_stage=zero_stage)
    resumed.load(tmp_path)
    assert resumed.update(request_of(1, "b", seed=5)) == after
    assert resumed.stamp() == learner.stamp()


def test_a_quantised_base_in_bfloat16_trains(quantised, learner_of):
    learner = learner_of(quantised, dtype="bfloat16")
    before = learner.stamp()
    assert trained(learner).stamp() != before
    assert {tensor.dtype for tensor in weights_of(learner).values()} == {torch.bfloat16}


def test_a_critic_has_its_whole_head_and_an_adapter(lora, value_dir, learner_of):
    critic = replace(lora, head="value", model_dir=str(value_dir))
    learner = learner_of(critic)
    before = weights_of(learner)
    after = weights_of(trained(learner, 2, ValueObjective()))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert {"score.weight", "score.bias", "model.layers.0.mlp.up_proj.weight"} <= moved
    assert "model.embed_tokens.weight" not in moved


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_holds_the_factors_and_continues_bit_for_bit(
    dtype, lora, learner_of, tmp_path
):
    learner = learner_of(lora, dtype=dtype)
    learner.update(request_of(0, "a"))
    learner.save(tmp_path)
    assert {
        n.rpartition(".lora_")[1] for n in load_file(tmp_path / "rank00000.weights.safetensors")
    } == {".lora_"}
    after = learner.update(request_of(1, "b", seed=5))
    resumed = learner_of(lora, dtype=dtype)
    resumed.load(tmp_path)
    assert resumed.update(request_of(1, "b", seed=5)) == after
    assert resumed.stamp() == learner.stamp()
    with pytest.raises(UserError, match="holds other parameters than this model"):
        learner_of(lora, dtype=dtype, adapter=LORA.model_copy(update={"rank": 8})).load(tmp_path)


def test_gradient_checkpointing_reaches_the_factors(lora, learner_of):
    plain, saving = learner_of(lora), learner_of(lora, gradient_checkpointing=True)
    assert_same_weights(weights_of(trained(saving)), weights_of(trained(plain)))


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (("q_prjo",), "'q_prjo' is no linear layer .* did you mean 'q_proj'"),
        (("lm_head",), "'lm_head' is no linear layer of Qwen2ForCausalLM but for its output head"),
        (("norm",), "'norm' is no linear layer"),
    ],
)
def test_a_target_that_is_none_is_refused(targets, said, lora, learner_of):
    with pytest.raises(UserError, match=said):
        learner_of(replace(lora, adapter=LORA.model_copy(update={"targets": targets})))


ADAPTED = {"GPT2LMHeadModel": 8, "MixtralForCausalLM": 8, "Qwen3NextForCausalLM": 17}


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ADAPTED)
@pytest.mark.parametrize("base", ["full", "nf4"])
def test_other_architectures(base, architecture, learner_of, tmp_path):
    """Linear layers of another kind, weights that files name otherwise, experts that one tensor
    holds: peft would adapt those of Qwen3-Next, and merging would lose them."""
    write_model(tmp_path / "base", architecture)
    adapter = LORA.model_copy(update={"base": base})
    check_adapter(adapter, tmp_path / "base")
    learner = learner_of(
        LearnerSpec(model_dir=str(tmp_path / "base"), zero_stage=0, adapter=adapter)
    )
    before = weights_of(learner)
    trained(learner)
    moved = [n for n, tensor in weights_of(learner).items() if not torch.equal(before[n], tensor)]
    assert len(moved) == ADAPTED[architecture]
    learner.export_hf(tmp_path / "out" / "model")
    batch = make_batch(4)
    expected = learner.logprobs(batch).logprobs
    for ours, theirs in zip(logprobs_of(tmp_path / "out" / "model", batch), expected, strict=True):
        np.testing.assert_allclose(ours, theirs[1:], atol=1e-4)


@pytest.mark.parametrize(
    ("architecture", "targets", "said"),
    [
        ("FalconH1ForCausalLM", "all-linear", "does not fit FalconH1ForCausalLM: .*'out_proj'"),
        (
            "Qwen3NextForCausalLM",
            ("up_proj", "gate_proj"),
            "peft adapts .*experts.* instead; name other",
        ),
        ("LlamaForCausalLM", ("embed_tokens",), "'embed_tokens' is no linear layer of Llama"),
    ],
)
def test_what_does_not_fit_is_told_before_a_run(architecture, targets, said, tmp_path):
    write_model(tmp_path, architecture)
    with pytest.raises(UserError, match=said):
        check_adapter(LORA.model_copy(update={"targets": targets}), tmp_path)
