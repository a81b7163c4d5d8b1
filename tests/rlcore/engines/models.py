"""Tiny models of several architectures, of random weights, for the engines' tests."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB, CONTEXT = 60, 120
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "dtype": torch.float32,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def _varied(model: Any) -> Any:
    """Give every parameter noise: a new model's norms are 1 and its biases 0, which hide faults."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.25)
    return model.eval()


def _llama(**options: Any) -> Callable[[], Any]:
    return lambda: _varied(LlamaForCausalLM(LlamaConfig(**SHAPE | options)))


def _mistral(window: int | None) -> Callable[[], Any]:
    return lambda: _varied(MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=window)))


def _gpt2() -> Any:
    """Its positions are a table that ends with the context."""
    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=CONTEXT,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=None,
        eos_token_id=None,
    )
    return _varied(GPT2LMHeadModel(config))


LLAMA_LIKE: dict[str, Callable[[], Any]] = {
    "Qwen2, tied": lambda: _varied(
        Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=True))
    ),
    "Qwen3, heads wider than hidden": lambda: _varied(
        Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16))
    ),
    "Llama, keys of each head": _llama(num_key_value_heads=4),
    "Llama, one head of keys, biases": _llama(
        num_key_value_heads=1, attention_bias=True, mlp_bias=True
    ),
    "Llama 3's angles": _llama(rope_parameters=LLAMA3),
    "Mistral, no window": _mistral(None),
}
OTHERS: dict[str, Callable[[], Any]] = {
    "sliding window": _mistral(8),
    "another activation": _llama(hidden_act="gelu"),
    "angles of the whole length": _llama(
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    ),
    "learned positions": _gpt2,
}
