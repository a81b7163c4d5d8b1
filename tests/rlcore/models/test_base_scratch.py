"""A model from scratch is the one that transformers would have made, but for the random numbers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from rlcore.models.base import STD, build_base_model
from rlcore.models.tokenizer import load_tokenizer
from schemas.model import FromScratch, ModelSection
from tests.rlcore.models.scratch import TEXTS

SHAPE = FromScratch(
    hidden_size=64, num_layers=3, num_heads=4, num_kv_heads=2, intermediate_size=96, vocab_size=300
)


def _built(folder: Path, dtype: Any = "float32", **more: Any) -> Path:
    shape = SHAPE.model_copy(update=more)
    model = ModelSection(from_scratch=shape, dtype=dtype, max_tokens=64)
    return build_base_model(model, folder, texts=TEXTS, seed=0)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_loader_reads_what_transformers_would_have_written(
    tmp_path: Path, dtype: str, tied: bool
) -> None:
    folder = _built(tmp_path / "ours", dtype, tie_word_embeddings=tied)
    tokenizer: Any = load_tokenizer(folder)
    shape: Any = {"bos_token_id": None, "dtype": dtype}
    theirs: Any = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=SHAPE.hidden_size,
            num_hidden_layers=SHAPE.num_layers,
            num_attention_heads=SHAPE.num_heads,
            num_key_value_heads=SHAPE.num_kv_heads,
            intermediate_size=SHAPE.intermediate_size,
            max_position_embeddings=SHAPE.max_position_embeddings,
            tie_word_embeddings=tied,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **shape,
        )
    ).to(getattr(torch, dtype))
    theirs.save_pretrained(tmp_path / "theirs")
    configs = [AutoConfig.from_pretrained(tmp_path / side).to_dict() for side in ("ours", "theirs")]
    for config in configs:
        config.pop("transformers_version")
        config.pop("_name_or_path")
    assert configs[0] == configs[1]
    generation = GenerationConfig.from_pretrained(folder)
    assert generation.eos_token_id == tokenizer.eos_token_id
    assert generation.pad_token_id == tokenizer.pad_token_id
    loading: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    ours, info = loading
    assert not any(info.values()), info
    wanted, found = theirs.state_dict(), ours.state_dict()
    assert {name: (t.shape, t.dtype) for name, t in found.items()} == {
        name: (t.shape, t.dtype) for name, t in wanted.items()
    }
    assert not any(torch.equal(found[n], found["lm_head.weight"]) for n in found if "proj" in n)


def test_weights_are_drawn_as_transformers_draws_them(tmp_path: Path) -> None:
    lm: Any = AutoModelForCausalLM.from_pretrained(_built(tmp_path / "m", vocab_size=512))
    for name, weight in lm.requires_grad_(False).named_parameters():
        if name.endswith("norm.weight"):
            assert (weight == 1).all(), name
        elif name.endswith("bias"):
            assert (weight == 0).all(), name
        else:
            bound = 4 * STD / weight.numel() ** 0.5
            assert abs(float(weight.mean())) < bound, name
            assert abs(float(weight.std()) / STD - 1) < 0.1, name
    embeddings = lm.get_input_embeddings().weight
    assert (embeddings[lm.config.pad_token_id] == 0).all()
    assert (embeddings.abs().sum(1) == 0).sum() == 1


def test_bfloat16_is_rounded_as_torch_rounds(tmp_path: Path) -> None:
    whole, half = (
        AutoModelForCausalLM.from_pretrained(_built(tmp_path / dtype, dtype)).state_dict()
        for dtype in ("float32", "bfloat16")
    )
    for name, weight in whole.items():
        assert torch.equal(weight.to(torch.bfloat16), half[name]), name
