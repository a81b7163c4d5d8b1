"""The causal LM a learner trains or scores with: loaded, dropout off, head checked."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rlcore.learner.spec import LearnerSpec
from rlcore.models.files import COMPANION_FILES
from rlcore.models.logprobs import TokenLogprobModel, check_plain_head, turn_off_dropout
from schemas.errors import UserError

if TYPE_CHECKING:
    import torch


def load_policy(spec: LearnerSpec, device: str) -> TokenLogprobModel:
    """Return the model of ``spec.model_dir`` on ``device`` in ``spec.dtype``, in train mode.

    Dropout is 0 everywhere: in modules, and in the configuration that attention code reads.
    Raises ``UserError`` for an architecture whose logits are not a plain head's, or when flash
    attention is asked for on CPU.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # a rank has no terminal of its own
    if device == "cpu" and spec.attn_implementation.startswith("flash"):
        raise UserError(
            f"learner attn_implementation = '{spec.attn_implementation}' runs on CUDA only and the "
            "device is cpu; use 'sdpa'"
        )
    config = AutoConfig.from_pretrained(spec.model_dir)
    rates = {n: 0.0 for n in config.to_dict() if n.endswith(("dropout", "_pdrop"))}
    config.update(rates)
    lm = AutoModelForCausalLM.from_pretrained(
        spec.model_dir,
        config=config,
        dtype=torch.float32 if spec.dtype == "float32" else torch.bfloat16,
        attn_implementation=spec.attn_implementation,
    )
    turn_off_dropout(lm)
    model = TokenLogprobModel(lm).to(device).train()
    check_plain_head(lm)
    if spec.gradient_checkpointing:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def write_hf_directory(
    target: Path, *, source: Path, state: "Mapping[str, torch.Tensor]", dtype: str
) -> None:
    """Write ``state`` as model.safetensors with ``source``'s config, tokenizer and template.

    ``config.json`` is ``source``'s with the weights' ``dtype``. The caller makes the directory
    atomic (write elsewhere, then rename).
    """
    from safetensors.torch import save_file

    target.mkdir(parents=True, exist_ok=True)
    for pattern in COMPANION_FILES:
        for file in source.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, target / file.name)
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = dtype
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
