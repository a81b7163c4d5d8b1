"""How many parameters a model has, read without loading any weights."""

from math import prod
from pathlib import Path

from rlcore.models.files import read_config
from rlcore.weights.stored import stored_tensors
from schemas.model import ModelSection


def model_parameters(model: ModelSection, directory: Path) -> int:
    """Return the number of parameters of the recipe's ``model``, which ``directory`` holds.

    Of a model from scratch it is the upper bound that the recipe states, so that it is known before
    the tokenizer is trained. Raises ``UserError`` as ``count_parameters``.
    """
    if model.from_scratch is not None:
        return model.from_scratch.parameters
    tied = bool(read_config(directory).get("tie_word_embeddings", False))
    return count_parameters(directory, tied=tied)


def count_parameters(directory: Path, *, tied: bool) -> int:
    """Return the number of parameters in the safetensors files of ``directory``, headers only.

    A tied ``lm_head.weight`` that some checkpoints repeat counts once. Raises ``UserError`` as
    ``stored_tensors``.
    """
    tensors = stored_tensors(directory)
    if tied:
        tensors.pop("lm_head.weight", None)
    return sum(prod(tensor.shape) for tensor in tensors.values())
