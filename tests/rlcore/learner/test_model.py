"""The model a learner loads is the one that training assumes, or it is refused by name."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
)

from rlcore.learner.model import load_model
from rlcore.learner.spec import LearnerSpec
from rlcore.models import architectures
from schemas.errors import UserError


def saved(path: Path, *, labels: int = 0, vocabulary: int = 61) -> str:
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=16,
        pad_token_id=0,
    )
    config.num_labels = labels
    model = Qwen2ForSequenceClassification(config) if labels else Qwen2ForCausalLM(config)
    model.save_pretrained(path)
    return str(path)


def test_model_that_changes_logits_in_an_unknown_way_is_refused(
    spec: LearnerSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training without what a class does after the head trains another model."""
    monkeypatch.setattr(architectures, "CAPS", ())
    config = Gemma2Config(
        vocab_size=61,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=32,
        final_logit_softcapping=0.5,
    )
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="Gemma2ForCausalLM changes its logits"):
        load_model(replace(spec, model_dir=str(tmp_path)), "cpu")


def test_dropout_is_off_though_the_model_trains(spec: LearnerSpec) -> None:
    """Two passes over one batch would else differ, and every ratio with them."""
    model = load_model(spec, "cpu")
    assert model.training
    assert model.lm.config.attention_dropout == 0.0  # the tiny model's files say 0.5
    assert {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)} <= {0.0}


@pytest.mark.parametrize("name", ["attention_probs_dropout_prob", "hidden_dropout_prob"])
def test_dropout_is_off_by_whatever_name(spec: LearnerSpec, tmp_path: Path, name: str) -> None:
    """BioGPT's attention and hidden layers read these names, with no module that could be told."""
    directory = tmp_path / "base"
    shutil.copytree(spec.model_dir, directory)
    config = json.loads((directory / "config.json").read_text()) | {name: 0.5}
    (directory / "config.json").write_text(json.dumps(config))
    model = load_model(replace(spec, model_dir=str(directory)), "cpu")
    assert getattr(model.lm.config, name) == 0.0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda path: {"attn_implementation": "flash_attention_2"}, "runs on CUDA only and the"),
        (
            lambda path: {"reference_dir": saved(path, vocabulary=62)},
            r"reference_dir = '.*' has 62 tokens and the policy 61; the KL .* one vocabulary",
        ),
        (
            lambda path: {"head": "value", "model_dir": saved(path, labels=3)},
            "scores 3 labels and a value model one; give a causal language model or",
        ),
    ],
    ids=["flash on cpu", "other vocabulary", "three labels"],
)
def test_a_model_that_cannot_serve_is_refused_before_training(
    spec: LearnerSpec, tmp_path: Path, change: Callable[[Path], dict], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        load_model(replace(spec, **change(tmp_path)), "cpu")
