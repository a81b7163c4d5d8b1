"""Models that do not keep packed documents apart train on one document a row, and say so."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from flows.paths import RECIPES
from rlcore.algorithms.objective import PreferenceObjective, SftObjective
from rlcore.learner.learner import Learner
from rlcore.learner.model import load_model
from rlcore.learner.packing_check import LISTED, PackingCheck, resolve_attention
from rlcore.learner.spec import LearnerSpec, Term
from rlcore.models.packing import Sequences
from rlcore.recipes.load import load_recipe
from rlcore.rl.workers import Workers
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.supervised.loop import SupervisedTraining
from rlcore.supervised.reward_model import ranked_sequences
from rlcore.supervised.sft import DemonstrationBatches
from schemas.errors import UserError
from tests.architectures import write_model
from tests.flows.small_run import INLINE, SMALL
from tests.rlcore.learner.algorithms import with_shared_prompts
from tests.rlcore.learner.architectures import (
    LEAKING,
    NO_SDPA,
    SEPARATING,
    write_architecture,
)
from tests.rlcore.learner.samples import (
    assert_same_weights,
    make_batch,
    reference_step,
    weights_of,
    write_tiny_model,
)
from tests.tiers import fast

Build = Callable[..., Learner]


def logprobs_alone(model_dir: Path, batch: Sequences) -> list[np.ndarray]:
    """Log-probs of each sequence by Hugging Face, one at a time."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir).eval()
    found = []
    for ids in batch.token_ids:
        tokens = torch.from_numpy(ids).long()
        with torch.no_grad():
            log_softmax = model(tokens[None]).logits[0].log_softmax(-1)
        chosen = log_softmax[:-1].gather(-1, tokens[1:, None])[:, 0]
        found.append(np.concatenate([[0.0], chosen.numpy()]))
    return found


def gap(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    return float(np.abs(np.concatenate(found) - np.concatenate(expected)).max())


@pytest.mark.parametrize("name", LEAKING)
def test_architecture_that_leaks_trains_as_one_document_alone(
    name: str, spec: LearnerSpec, batch: Sequences, learner_of: Build, tmp_path: Path
):
    """Log-probs and an optimizer step equal those of Hugging Face, a sequence at a time.

    Rows that could hold several documents, and micro-batches of several rows.
    """
    write_architecture(tmp_path / "model", name)
    ours = replace(
        spec,
        model_dir=str(tmp_path / "model"),
        micro_batch_tokens=160,
        row_tokens=80,
        attn_implementation="eager" if name in NO_SDPA else "sdpa",
    )
    learner = learner_of(ours)
    assert gap(learner.logprobs(batch).logprobs, logprobs_alone(tmp_path / "model", batch)) < 1e-4
    terms = [Term(batch, SftObjective())]
    expected, _ = reference_step(ours, terms, 0.1)
    learner.step(terms, 0.1)
    found = weights_of(learner)
    assert_same_weights(found, {name: expected[name] for name in found}, 1e-5)
    assert "each row holds one document" in str(learner.packing_warning())


# One plain, soft-capped, with a sliding window and hybrid.
KINDS = ("LlamaForCausalLM", "Gemma2ForCausalLM", "MistralForCausalLM", "Qwen3NextForCausalLM")


@pytest.mark.parametrize("name", fast(LISTED, *KINDS))
def test_a_step_of_a_listed_architecture_is_that_of_each_document_alone(
    name: str, spec: LearnerSpec, batch: Sequences, learner_of: Build, tmp_path: Path
):
    """Whatever it does to names, attention, documents and logits: a step equals Hugging Face's."""
    write_model(tmp_path, name)
    ours = replace(spec, model_dir=str(tmp_path), row_tokens=None, attn_implementation="auto")
    learner, terms = learner_of(ours), [Term(batch, SftObjective())]
    expected, _ = reference_step(ours, terms, 0.1)
    learner.step(terms, 0.1)
    assert_same_weights(weights_of(learner), expected, 1e-5)


@pytest.mark.parametrize("name", SEPARATING)
def test_architecture_that_separates_documents_packs_them(
    name: str, spec: LearnerSpec, batch: Sequences, learner_of: Build, tmp_path: Path
):
    write_architecture(tmp_path / "model", name)
    learner = learner_of(spec, model_dir=str(tmp_path / "model"), row_tokens=130, trainable=False)
    assert gap(learner.logprobs(batch).logprobs, logprobs_alone(tmp_path / "model", batch)) < 1e-4
    assert learner.packing_warning() is None


@pytest.mark.parametrize("name", [*SEPARATING, *LEAKING])
def test_prompts_are_shared_where_the_model_can(
    name: str, spec: LearnerSpec, learner_of: Build, tmp_path: Path
):
    """A model with a window, a state or a mask of its own would see other tokens; its answers stay
    whole, and equal to Hugging Face's."""
    write_architecture(tmp_path / "model", name)
    attention = "eager" if name in NO_SDPA else "sdpa"
    batch = with_shared_prompts(make_batch(8), 2)
    ours = replace(
        spec, model_dir=str(tmp_path / "model"), attn_implementation=attention, trainable=False
    )
    learner = learner_of(ours)
    _, check = resolve_attention(load_model(ours, "cpu"), ours, "cpu")
    assert check.shares == (name in {"Qwen2", "Qwen3", "Llama", "Gemma", "Phi", "GPT2"})
    alone = [
        np.where(mask, row, 0.0)
        for row, mask in zip(
            logprobs_alone(tmp_path / "model", batch), batch.loss_mask, strict=True
        )
    ]
    assert gap(learner.logprobs(batch, targets="loss_mask").logprobs, alone) < 1e-4


@pytest.mark.parametrize(("name", "leaks"), [("FalconH1", True), ("Lfm2", True), ("Qwen2", False)])
def test_rounding_of_bf16_is_not_taken_for_a_leak(
    name: str, leaks: bool, spec: LearnerSpec, learner_of: Build, tmp_path: Path
):
    write_architecture(tmp_path / "model", name)
    learner = learner_of(spec, model_dir=str(tmp_path / "model"), dtype="bfloat16", trainable=False)
    assert (learner.packing_warning() is not None) == leaks


@pytest.mark.parametrize("name", ["OPT", "Falcon", "Qwen3_5"])
def test_value_model_with_a_fresh_head_is_checked_too(
    name: str, spec: LearnerSpec, learner_of: Build, tmp_path: Path
):
    """Its scores are all 0, packed or alone; what the head reads is not."""
    write_architecture(tmp_path / "model", name)
    learner = learner_of(spec, model_dir=str(tmp_path / "model"), head="value", trainable=False)
    assert learner.packing_warning() is not None


def test_reward_model_that_leaks_ranks_as_if_each_response_stood_alone(
    spec: LearnerSpec, batch: Sequences, learner_of: Build, tmp_path: Path
):
    """Whole prompts share a micro-batch, and their responses no row."""
    write_architecture(tmp_path / "model", "OPT", head="value")
    ours = replace(
        spec, model_dir=str(tmp_path / "model"), head="value", micro_batch_tokens=160, row_tokens=80
    )
    ranked = ranked_sequences(batch, np.arange(12) % 3, np.arange(12) // 3)
    learner = learner_of(ours)
    scores = [row[-1] for row in learner.values(batch, targets="last")]
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    alone = []
    for ids in batch.token_ids:
        with torch.no_grad():
            hidden = model.base_model(torch.from_numpy(ids).long()[None]).last_hidden_state
            alone.append(float(model.score(hidden[0, -1])))
    np.testing.assert_allclose(scores, alone, atol=1e-4)
    margins = np.array(alone)
    losses = [
        [
            np.log1p(np.exp(margins[worse] - margins[better]))
            for better in range(3 * group, 3 * group + 3)
            for worse in range(better + 1, 3 * group + 3)
        ]
        for group in range(4)
    ]
    metrics = learner.step([Term(ranked, PreferenceObjective())], 0.1)
    assert metrics["reward_model/loss"] == pytest.approx(np.mean(losses), abs=1e-4)


def test_reference_that_leaks_counts(spec: LearnerSpec, learner_of: Build, tmp_path: Path):
    """The exact KL reads policy and reference off the same rows."""
    write_architecture(tmp_path / "reference", "Falcon")
    learner = learner_of(spec, reference_dir=str(tmp_path / "reference"))
    assert "FalconForCausalLM" in str(learner.packing_warning())


def test_two_ranks_agree_on_rows_of_one_document(
    spec: LearnerSpec, pair, batch: Sequences, tmp_path: Path
):
    """Under ZeRO 3 even a forward pass is collective: all ranks lay out rows alike."""
    write_architecture(tmp_path / "model", "OPT")
    ours = replace(
        spec,
        model_dir=str(tmp_path / "model"),
        zero_stage=3,
        micro_batch_tokens=160,
        row_tokens=80,
    )
    group = pair.build(ours)
    assert gap(group.logprobs(batch).logprobs, logprobs_alone(tmp_path / "model", batch)) < 1e-4
    terms = [Term(batch, SftObjective())]
    expected, _ = reference_step(ours, terms, 0.1)
    group.step(terms, 0.1)
    found = weights_of(group)
    assert_same_weights(found, {name: expected[name] for name in found}, 1e-5)


def test_architecture_that_reads_ahead_is_refused(
    spec: LearnerSpec, learner_of: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A model that sees what follows would see padding, too."""
    from transformers.models.qwen2 import modeling_qwen2

    def everything_visible(inputs_embeds, **_):
        rows, tokens, _ = inputs_embeds.shape
        return torch.ones(rows, 1, tokens, tokens, dtype=torch.bool)

    write_tiny_model(tmp_path / "model")
    monkeypatch.setattr(modeling_qwen2, "create_causal_mask", everything_visible)
    with pytest.raises(UserError, match=r"Qwen2ForCausalLM .* not causal .* use a causal language"):
        learner_of(spec, model_dir=str(tmp_path / "model"), trainable=False)


def test_sft_warns_once_of_rows_of_one_document(tmp_path: Path):
    """In the log of the run: architecture and leak."""
    write_architecture(tmp_path / "model", "OPT")
    said: list[str] = []
    overrides = {
        "sft.epochs": 1,
        "sft.batch_size": 8,
        "hardware.learner.row_tokens": 512,
        "hardware.learner.attention": "sdpa",
    }
    recipe = load_recipe("quickstart", {**SMALL, **INLINE, **overrides}, directory=RECIPES)
    batch = make_batch(24)
    masks = [mask.astype(np.uint8) for mask in batch.loss_mask]
    demonstrations = pl.DataFrame(
        {
            "split": ["train"] * 16 + ["validation"] * 8,
            "token_ids": [ids.tolist() for ids in batch.token_ids],
            "loss_mask": [mask.tolist() for mask in masks],
        }
    )
    with Workers(recipe, warn=said.append) as workers:
        learner = workers.learner(
            tmp_path / "model", recipe.sft.optimizer, name="sft-learner", stage="sft"
        )
        SupervisedTraining(
            DemonstrationBatches(recipe.sft, demonstrations, 0),
            recipe.sft,
            learner=learner,
            store=ArtifactStore(str(tmp_path / "store")),
            key="run",
            lineage=Lineage("recipe", "code"),
        ).run(lambda progress: None, log=said.append)
        reference = workers.learner(tmp_path / "model", None, name="reference")
        reference.logprobs(batch).result()
    (line,) = said
    assert line.startswith("architecture OPTForCausalLM does not keep packed documents apart")
    assert "so each row holds one document" in line


def test_why_flash_attention_was_not_taken_is_told() -> None:
    """A GPU run at a third of its speed should say what it lacks."""
    check = PackingCheck("Qwen2ForCausalLM", 0.0, 1.0, declined="auto took sdpa: heads of 512")
    assert check.warning == "auto took sdpa: heads of 512"
    said = str(replace(check, leak=2.0).warning)
    assert said.startswith("auto took sdpa: heads of 512; architecture Qwen2ForCausalLM does not")
