"""A Qwen2 of random weights as files, as transformers would write it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from schemas.model import FromScratch

STD = 0.02  # of weights, Qwen2's initializer_range


def write_scratch(
    target: Path,
    shape: FromScratch,
    *,
    dtype: Literal["float32", "bfloat16"],
    vocab_size: int,
    eos: int,
    pad: int,
    seed: int,
) -> None:
    """Write config, generation config and weights into the directory ``target``.

    Weights as transformers draws them (``PreTrainedModel._init_weights``): normal of mean 0 and
    ``STD``, biases and the embedding of ``pad`` 0, norms 1; of equal bits for equal arguments.
    ``vocab_size``: the tokenizer's; ``eos``, ``pad``: token ids.
    """
    tokens = {"eos_token_id": eos, "pad_token_id": pad}
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "tie_word_embeddings": shape.tie_word_embeddings,
        "initializer_range": STD,
        "bos_token_id": None,
        **tokens,
        "dtype": dtype,
    }
    for name, content in {"config.json": config, "generation_config.json": tokens}.items():
        (target / name).write_text(
            json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8"
        )
    # The command line imports this module, and waits for torch only where a model is made.
    import torch
    from safetensors.torch import save_file

    weights = {
        name: torch.from_numpy(array).to(getattr(torch, dtype))
        for name, array in _weights(shape, vocab_size, pad, seed)
    }
    save_file(weights, target / "model.safetensors", {"format": "pt"})


def _weights(
    shape: FromScratch, vocab_size: int, pad: int, seed: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and value, float32, of each weight."""
    generator = np.random.default_rng(seed)
    hidden, feed = shape.hidden_size, shape.intermediate_size
    keys = hidden // shape.num_heads * shape.num_kv_heads

    def drawn(rows: int, columns: int) -> np.ndarray:
        return STD * generator.standard_normal((rows, columns), dtype=np.float32)

    def ones() -> np.ndarray:
        return np.ones(hidden, dtype=np.float32)

    embeddings = drawn(vocab_size, hidden)
    embeddings[pad] = 0.0
    yield "model.embed_tokens.weight", embeddings
    for layer in range(shape.num_layers):
        name = f"model.layers.{layer}"
        yield f"{name}.input_layernorm.weight", ones()
        for part, size in {"q": hidden, "k": keys, "v": keys}.items():
            yield f"{name}.self_attn.{part}_proj.weight", drawn(size, hidden)
            yield f"{name}.self_attn.{part}_proj.bias", np.zeros(size, dtype=np.float32)
        yield f"{name}.self_attn.o_proj.weight", drawn(hidden, hidden)
        yield f"{name}.post_attention_layernorm.weight", ones()
        yield f"{name}.mlp.gate_proj.weight", drawn(feed, hidden)
        yield f"{name}.mlp.up_proj.weight", drawn(feed, hidden)
        yield f"{name}.mlp.down_proj.weight", drawn(hidden, feed)
    yield "model.norm.weight", ones()
    if not shape.tie_word_embeddings:
        yield "lm_head.weight", drawn(vocab_size, hidden)
