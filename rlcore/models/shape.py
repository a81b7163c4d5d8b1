"""The sizes of a model (layers, widths, vocabulary, parameters), read without loading any
weights."""

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import (
    HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # of whichever httpx the hub uses
    OfflineModeIsEnabled,
)

from rlcore.models.files import HUB_TIMEOUT_S, SIZE_NAMES, read_config
from rlcore.models.smollm2 import FOLDER
from rlcore.models.weight_files import checkpoint_shapes
from schemas.errors import UserError
from schemas.model import FromScratch, ModelSection


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder. ``exact`` is false where the tokenizer has not been trained yet."""

    name: str
    parameters: int
    exact: bool
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Return the bytes one token takes in the KV cache: key and value of each layer."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_value


def from_scratch_shape(scratch: FromScratch) -> ModelShape:
    """Return the shape of the Qwen2 that ``scratch`` describes, at its vocabulary's upper bound."""
    head_dim = scratch.hidden_size // scratch.num_heads
    return ModelShape(
        name="a Qwen2 from scratch",
        parameters=scratch.parameters,
        exact=False,
        vocab_size=scratch.vocab_size,
        hidden_size=scratch.hidden_size,
        num_layers=scratch.num_layers,
        num_heads=scratch.num_heads,
        num_kv_heads=scratch.num_kv_heads,
        head_dim=head_dim,
        intermediate_size=scratch.intermediate_size,
    )


def find_shape(model: ModelSection) -> tuple[ModelShape | None, str]:
    """Return the shape of the recipe's model, or None and the reason why it is not known.

    Looks at the recipe, then at a local directory, then at the hub's local cache, then asks the hub
    for the config and the parameter count (two small requests, unless HF_HUB_OFFLINE is set).
    Raises ``UserError`` when ``path`` names a local directory that is missing or not a model.
    """
    if model.from_scratch is not None:
        return from_scratch_shape(model.from_scratch), ""
    path = model.path or ""
    local = Path(path).expanduser()
    if local.is_dir():
        return directory_shape(local, path), ""
    if local.is_file():
        raise UserError(f"model.path = '{path}' is a file; give the model's directory")
    if path.startswith(("/", "./", "../", "~")) or path.count("/") > 1:
        written = "rl-pipeline models smollm2 writes it; or " if Path(path) == FOLDER else ""
        raise UserError(
            f"model.path = '{path}' does not exist; {written}give a Hugging Face model directory or"
            " a hub name (owner/name)"
        )
    return _hub_shape(path, model.revision)


def directory_shape(directory: Path, name: str) -> ModelShape:
    """Return the shape of the model of ``directory``; ``name``: in errors. Raises ``UserError``
    where it is no decoder, and as ``stored_tensors``."""
    return _shape_of_config(name, read_config(directory), directory_parameters(directory))


def _shape_of_config(name: str, config: dict[str, Any], parameters: int) -> ModelShape:
    """Read the keys that Llama-like configs share (Llama, Mistral, Qwen2, Qwen3, Gemma, ...), or
    those of GPT-2 and OPT."""
    config = {ours: config[old] for old, ours in SIZE_NAMES.items() if old in config} | config
    if "n_inner" in config:  # GPT-2's null means four times the hidden size
        config["intermediate_size"] = config["n_inner"] or 4 * config["hidden_size"]
    missing = [key for key in ("vocab_size", *SIZE_NAMES.values()) if key not in config]
    if missing:
        raise UserError(
            f"config.json of '{name}' has no '{missing[0]}'; give a decoder-only text model"
        )
    heads = config["num_attention_heads"]
    return ModelShape(
        name=name,
        parameters=parameters,
        exact=True,
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        intermediate_size=config["intermediate_size"],
    )


def _hub_shape(name: str, revision: str | None) -> tuple[ModelShape | None, str]:
    cached = try_to_load_from_cache(name, "config.json", revision=revision)
    if isinstance(cached, str) and list(Path(cached).parent.glob("model*.safetensors")):
        return directory_shape(Path(cached).parent, name), ""
    try:
        info = HfApi().model_info(
            name, revision=revision, timeout=HUB_TIMEOUT_S, expand=["safetensors"]
        )
        config = hf_hub_download(name, "config.json", revision=revision, etag_timeout=HUB_TIMEOUT_S)
    # the hub may be unreachable from this machine, and a plan without sizes is still useful
    except (OSError, OfflineModeIsEnabled, HTTPError) as error:
        return None, f"unknown: model not at hand ('{name}': {type(error).__name__})"
    if info.safetensors is None:
        return None, f"unknown: the hub does not give the number of parameters of '{name}'"
    return _shape_of_config(
        name, json.loads(Path(config).read_text(encoding="utf-8")), info.safetensors.total
    ), ""


def model_parameters(model: ModelSection, directory: Path) -> int:
    """Return the number of parameters of the recipe's ``model``, which ``directory`` holds.

    Of a model from scratch it is the upper bound that the recipe states, so that it is known before
    the tokenizer is trained. Raises ``UserError`` as ``stored_tensors``.
    """
    if model.from_scratch is not None:
        return model.from_scratch.parameters
    return directory_parameters(directory)


def directory_parameters(directory: Path) -> int:
    """Return the number of parameters in the safetensors files of ``directory``, headers only; a
    tied ``lm_head.weight`` that some checkpoints repeat counts once."""
    return sum(prod(shape) for shape in checkpoint_shapes(directory).values())
