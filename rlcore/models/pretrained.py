"""Loads model and tokenizer of a Hugging Face directory, before or after training."""

from pathlib import Path
from typing import TYPE_CHECKING

from rlcore.models.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rlcore.models.tokenizer import ChatTokenizer


def load_pretrained(directory: Path) -> "tuple[PreTrainedModel, ChatTokenizer]":
    """Return model (on CPU, eval mode, dtype of its files) and tokenizer of ``directory``.

    Raises UserError when the tokenizer cannot be used.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    return model.eval(), load_tokenizer(directory)
