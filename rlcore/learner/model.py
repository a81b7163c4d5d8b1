"""The model a learner trains or scores with: loading, without dropout and with a checked head;
writing."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.learner.attention import AUTO, FLASH, INSTALL, SDPA, flash_problem
from rlcore.learner.spec import LearnerSpec
from rlcore.models.adapter import add_adapter
from rlcore.models.architectures import plain_attention
from rlcore.models.files import copy_tokenizer, read_config, with_dtype, write_json
from rlcore.models.logprobs import TokenLogprobModel, WithoutAdapter, check_head, turn_off_dropout
from rlcore.models.value_model import SCORE_BIAS, TokenValueModel, put_score_head
from rlcore.models.weight_files import checkpoint_shapes, read_checkpoint
from schemas.errors import UserError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

TokenModel = TokenLogprobModel | TokenValueModel
SCORE_WEIGHT = "score.weight"


def load_model(spec: LearnerSpec, device: str) -> TokenModel:
    """Return the model of ``spec.model_dir`` on ``device`` in ``spec.dtype``, in train mode.

    Dropout is 0 everywhere: in modules, and in the configuration that attention code reads.
    Raises ``UserError`` for an architecture that changes the logits after the head or has no plain
    score head, and for flash attention on CPU or where its package does not import. "auto"
    loads with sdpa (``plain_attention``), which ``resolve_attention`` may change.
    """
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # a rank has no terminal
    if device == "cpu" and spec.attn_implementation.startswith("flash"):
        raise UserError(
            f"learner attn_implementation = '{spec.attn_implementation}' runs on CUDA only and the "
            "device is cpu; use 'auto' or 'sdpa'"
        )
    if spec.attn_implementation == FLASH and (problem := flash_problem()) is not None:
        raise UserError(
            f"learner attn_implementation = '{FLASH}' and {problem}; {INSTALL}, or use 'auto' or "
            "'sdpa'"
        )
    lm = _load_value(spec) if spec.head == "value" else _load_lm(spec, spec.model_dir)
    if spec.adapter is not None:
        add_adapter(lm, spec.adapter, device)
    if spec.head == "value":
        model = TokenValueModel(lm).to(device).train()
    else:
        reference = None
        if spec.reference_dir is not None and spec.adapter is not None:
            reference = WithoutAdapter(lm)
        elif spec.reference_dir is not None:
            reference = TokenLogprobModel(_load_lm(spec, spec.reference_dir))
            _same_vocabulary(lm, reference.lm, spec)
            reference.to(device).requires_grad_(False)
        model = TokenLogprobModel(lm, reference).to(device).train()
        check_head(model)
    if spec.gradient_checkpointing:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def _same_vocabulary(
    lm: "PreTrainedModel", reference: "PreTrainedModel", spec: LearnerSpec
) -> None:
    sizes = [model.config.get_text_config().vocab_size for model in (lm, reference)]
    if sizes[0] != sizes[1]:
        raise UserError(
            f"learner reference_dir = '{spec.reference_dir}' has {sizes[1]} tokens and the policy "
            f"{sizes[0]}; the KL of their distributions needs one vocabulary"
        )


def _load_lm(spec: LearnerSpec, directory: str) -> "PreTrainedModel":
    from transformers import AutoModelForCausalLM

    lm = AutoModelForCausalLM.from_pretrained(directory, **_loading(spec, directory))
    turn_off_dropout(lm)
    return lm


def _load_value(spec: LearnerSpec) -> "PreTrainedModel":
    """A classifier with our score head: the weights of the directory, zeros where it has none."""
    from transformers import AutoModelForSequenceClassification
    from transformers.utils import logging

    shapes = checkpoint_shapes(spec.model_dir)
    fresh = SCORE_WEIGHT not in shapes
    if not fresh and shapes[SCORE_WEIGHT][0] != 1:
        raise UserError(
            f"learner model_dir = '{spec.model_dir}' scores {shapes[SCORE_WEIGHT][0]} labels and a "
            "value model one; give a causal language model or a classifier with num_labels 1"
        )
    arguments = _loading(spec, spec.model_dir)
    arguments["config"].num_labels = 1
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # it would warn about the head, which is set below
    lm = AutoModelForSequenceClassification.from_pretrained(spec.model_dir, **arguments)
    logging.set_verbosity(verbosity)
    has_bias = SCORE_BIAS in shapes
    put_score_head(
        lm, read_checkpoint(spec.model_dir)[SCORE_BIAS] if has_bias else None, fresh=fresh
    )
    turn_off_dropout(lm)
    return lm


def _loading(spec: LearnerSpec, directory: str) -> dict[str, Any]:
    """Arguments of ``from_pretrained``, dropout off in the configuration."""
    import torch
    from transformers import AutoConfig

    config, wanted = AutoConfig.from_pretrained(directory), spec.attn_implementation
    endings = ("dropout", "dropout_prob", "_pdrop", "layerdrop")
    config.update({name: 0.0 for name in config.to_dict() if name.endswith(endings)})
    return {
        "config": config,
        "dtype": torch.float32 if spec.dtype == "float32" else torch.bfloat16,
        "attn_implementation": plain_attention(config) if wanted in (AUTO, SDPA) else wanted,
    }


def write_hf_directory(
    target: Path,
    *,
    source: Path,
    state: "Mapping[str, torch.Tensor]",
    dtype: str,
    architecture: str,
) -> None:
    """Write ``state`` as model.safetensors with ``source``'s config, tokenizer and template.

    ``config.json`` is ``source``'s with the weights' ``dtype``; a value model's names
    ``architecture``, one label and the padding token, as transformers' classifiers require. The
    caller makes the directory atomic (write elsewhere, then rename).
    """
    from safetensors.torch import save_file

    target.mkdir(parents=True, exist_ok=True)
    copy_tokenizer(source, target)
    config = with_dtype(read_config(source), dtype)
    if SCORE_WEIGHT in state:
        config |= {
            "architectures": [architecture],
            "id2label": {"0": "LABEL_0"},
            "label2id": {"LABEL_0": 0},
            "num_labels": 1,
            "pad_token_id": padding_token(source),
        }
    write_json(target / "config.json", config)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


def padding_token(model_dir: Path) -> int | None:
    """Return the padding token id of ``config.json`` or ``generation_config.json``.

    transformers' classifiers score the last token that is *not* padding. Where EOS is also the
    padding token, or there is none, return None: they then accept one text at a time and score its
    last token, as we do.
    """
    found: dict[str, Any] = {}
    ends: list[Any] = []
    for name in ("generation_config.json", "config.json"):
        path = model_dir / name
        values = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        found |= {name: value for name, value in values.items() if value is not None}
        eos = values.get("eos_token_id")
        ends += eos if isinstance(eos, list) else [eos]
    padding = found.get("pad_token_id")
    return None if padding in ends else padding
