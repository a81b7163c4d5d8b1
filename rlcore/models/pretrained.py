"""Loads model and tokenizer of a Hugging Face directory, before or after training."""

from pathlib import Path

from transformers import AutoModelForCausalLM, PreTrainedModel

from rlcore.models.tokenizer import ChatTokenizer, load_tokenizer


def load_pretrained(directory: Path) -> tuple[PreTrainedModel, ChatTokenizer]:
    """Return model (on CPU, eval mode, dtype of its files) and tokenizer of ``directory``.

    Raises UserError when the tokenizer cannot be used.
    """
    model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    return model.eval(), load_tokenizer(directory)
