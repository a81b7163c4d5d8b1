"""Which models take a mask of ours, and what it says."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, MistralConfig, Qwen2Config

from rlcore.models.architectures import takes_masks
from rlcore.models.logprobs import tree_mask

SHAPE: dict[str, Any] = {
    "vocab_size": 16,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


def test_a_branch_attends_to_its_prompt_and_not_to_another_branch() -> None:
    """A prompt of two tokens, branches of two and one, and padding, which attends to itself: a row
    of the mask without any place would give NaN."""
    documents = torch.tensor([[0, 0, 1, 1, 2, -1]], dtype=torch.int32)
    continued = torch.tensor([[0, 0, 0, 0, 0, -1]], dtype=torch.int32)
    mask = tree_mask(documents, continued)
    assert mask is not None
    assert mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 1],
    ]
    assert tree_mask(None, None) is None


def test_a_model_with_a_window_does_not_take_masks() -> None:
    """Ours would let it see beyond its window."""
    plain = AutoModelForCausalLM.from_config(Qwen2Config(**SHAPE))
    windowed = AutoModelForCausalLM.from_config(MistralConfig(**SHAPE, sliding_window=4))
    assert takes_masks(plain)
    assert not takes_masks(windowed)
