"""The base model as a local Hugging Face directory: copied, or made from random weights."""

import json
from collections.abc import Iterable
from pathlib import Path

from rlcore.models.files import copy_model
from rlcore.models.tokenizer import EOS, PAD, load_tokenizer, train_tokenizer
from schemas.errors import UserError
from schemas.recipe import ModelSection

TOKENIZER_TEXTS = 16384  # enough for every word of generated text; more only costs time


def copy_base_model(model: ModelSection, source: Path, target: Path) -> Path:
    """Copy the model that ``model.path`` names from ``source`` to ``target``; return ``target``.

    ``source``: the directory that ``locate_model`` returns for it. Carries safetensors weights,
    configuration, tokenizer and ``model.chat_template`` if one is set. Raises ``UserError`` when
    the model lacks a part (``copy_model``, ``load_tokenizer``), or its context is shorter than
    ``model.max_tokens``.
    """
    assert model.path is not None, "a model from scratch is built, not copied"
    copy_model(source, target, trust_remote_code=model.trust_remote_code)
    context = json.loads((target / "config.json").read_text()).get("max_position_embeddings")
    if context is not None and context < model.max_tokens:
        raise UserError(
            f"model.max_tokens = {model.max_tokens} exceeds max_position_embeddings = {context} of"
            f" model '{model.path}'; lower model.max_tokens"
        )
    if model.chat_template is not None:
        _set_chat_template(target, model)
    load_tokenizer(target, name=model.path, trust_remote_code=model.trust_remote_code)
    return target


def build_base_model(model: ModelSection, target: Path, *, texts: Iterable[str], seed: int) -> Path:
    """Write a Qwen2 of random weights and a tokenizer trained on ``texts``; return ``target``.

    Equal arguments give byte-identical files. Raises ``UserError`` for a vocabulary below 261.
    """
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    shape = model.from_scratch
    assert shape is not None, "a model with a path is copied, not built"
    tokenizer = train_tokenizer(_first(texts, TOKENIZER_TEXTS), shape.vocab_size)
    if model.chat_template is not None:
        tokenizer.chat_template = model.chat_template
    tokenizer.model_max_length = shape.max_position_embeddings
    eos, pad = tokenizer.get_vocab()[EOS], tokenizer.get_vocab()[PAD]
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=shape.max_position_embeddings,
        tie_word_embeddings=shape.tie_word_embeddings,
        eos_token_id=eos,
        pad_token_id=pad,
        bos_token_id=None,
        dtype=model.dtype,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        lm = Qwen2ForCausalLM(config)
    torch.nn.Module.to(lm, torch.float32 if model.dtype == "float32" else torch.bfloat16)
    lm.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=pad)
    disable_progress_bar()  # of one file
    lm.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target


def _set_chat_template(target: Path, model: ModelSection) -> None:
    """Make ``model.chat_template`` the only one of the directory's tokenizer."""
    for file in target.glob("chat_template*"):
        file.unlink()
    config_file = target / "tokenizer_config.json"
    config = json.loads(config_file.read_text()) if config_file.is_file() else {}
    config.pop("chat_template", None)
    config_file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    (target / "chat_template.jinja").write_text(model.chat_template or "")


def _first(texts: Iterable[str], count: int) -> Iterable[str]:
    return (text for text, _ in zip(texts, range(count), strict=False))
