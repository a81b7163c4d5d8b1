"""Tiny models of many architectures, as Hugging Face writes them."""

from pathlib import Path
from typing import Any

import torch

VOCABULARY = 61
_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MAMBA = {
    "mamba_d_ssm": 64,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}
_DELTA_NET = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "head_dim": 8,
}
# Positions that restart do not separate documents for these, by attention or by a state.
LEAKING: dict[str, dict[str, Any]] = {
    "OPT": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "Falcon": {},
    "Bloom": {},
    "Lfm2": {"num_hidden_layers": 4, "full_attn_idxs": [2]},
    "FalconH1": _MAMBA,
    "Qwen3_5": _DELTA_NET,
}
SEPARATING: dict[str, dict[str, Any]] = {
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "Llama": {},
    "Mistral": {"sliding_window": 4},
    "Gemma": {"head_dim": 8},
    "Phi": {},
    "GPT2": {},
}
NO_SDPA = {"Bloom"}
_CONFIGS = {"Qwen3_5": "Qwen3_5TextConfig"}
_LMS = {"GPT2": "GPT2LMHeadModel"}


def write_architecture(path: Path, name: str, *, head: str = "lm", **changes: Any) -> None:
    """Write a model of random weights; ``head`` "value": a classifier with one label."""
    import transformers

    settings = {**_SHAPE, **LEAKING.get(name, {}), **SEPARATING.get(name, {}), **changes}
    config = getattr(transformers, _CONFIGS.get(name, f"{name}Config"))(**settings)
    lm = _LMS.get(name, f"{name}ForCausalLM")
    if head == "value":
        config.num_labels = 1
        lm = f"{name}ForSequenceClassification"
    torch.manual_seed(7)
    model = getattr(transformers, lm)(config)
    for parameter in model.parameters():  # from scratch, logits are almost 0 and hide errors
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(path)
    (path / "tokenizer.json").write_text("{}")
