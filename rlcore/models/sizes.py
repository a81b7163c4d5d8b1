"""How many parameters a model has, read without loading any weights."""

import json
import struct
from math import prod
from pathlib import Path
from typing import Any

from rlcore.models.files import read_config
from schemas.errors import UserError
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

    A tied ``lm_head.weight`` that some checkpoints repeat counts once. Raises ``UserError`` when
    there is no such file or one is not safetensors.
    """
    files = sorted(directory.glob("model*.safetensors"))
    if not files:
        raise UserError(
            f"model.path = '{directory}' holds no model*.safetensors; save the model with"
            " save_pretrained first"
        )
    shapes: dict[str, list[int]] = {}
    for file in files:
        header = _safetensors_header(file)
        shapes |= {name: entry["shape"] for name, entry in header.items()}
    if tied:
        shapes.pop("lm_head.weight", None)
    return sum(prod(shape) for shape in shapes.values())


def _safetensors_header(file: Path) -> dict[str, Any]:
    """Read the JSON header: 8 bytes of little-endian length, then the entries."""
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        text = stream.read(length) if 0 < length <= file.stat().st_size else b""
    try:
        header = json.loads(text)
    except ValueError:
        raise UserError(
            f"weights file {file} is not a readable safetensors file; fetch or save the model again"
        ) from None
    header.pop("__metadata__", None)
    return header
