"""Weights as files: those that a flow sends to its engines, and Hugging Face directories."""

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlcore.weights.leftovers import exchange_folder, remove_abandoned_weights
from rlcore.weights.stored import weight_files
from schemas.errors import UserError

if TYPE_CHECKING:
    import torch


@contextmanager
def exchange_file() -> Iterator[Path]:
    """Yield a path in shared memory for one weights file, which is removed afterwards.

    Files left there by killed processes of this machine are removed first.
    """
    remove_abandoned_weights()
    path = exchange_folder() / f"rl-weights-{os.getpid()}-{uuid.uuid4().hex[:8]}.safetensors"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def write_state(path: str | Path, state: "Mapping[str, torch.Tensor]") -> None:
    """Write ``state`` (canonical names) to a safetensors file: complete or absent.

    Written next to ``path`` and renamed over it, so a reader never sees a half-written file.
    Tensors may live on any device; views and strides are flattened. safetensors raises
    ``RuntimeError`` when two of them share memory: the names were not canonical.
    """
    from safetensors.torch import save_file

    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        save_file({name: t.detach().cpu().contiguous() for name, t in state.items()}, temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def read_state(path: str | Path) -> "dict[str, torch.Tensor]":
    """Return the tensors of a safetensors file, memory-mapped, on CPU.

    Raises ``UserError`` when the file is missing, truncated or not safetensors.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not Path(path).is_file():
        raise UserError(f"weights file {path} does not exist; the learner must publish it again")
    try:
        return load_file(path)
    except SafetensorError as error:  # untrusted input: name the file
        raise UserError(
            f"weights file {path} is not a readable safetensors file ({error}); publish it again"
        ) from error


def read_checkpoint(model_dir: str | Path) -> "dict[str, torch.Tensor]":
    """Return the canonical state of a Hugging Face directory (one safetensors file or shards).

    A tied ``lm_head.weight`` that some checkpoints repeat is dropped. Raises ``UserError`` when
    the directory holds no safetensors weights or no ``config.json``.
    """
    state: dict[str, torch.Tensor] = {}
    for file in _weight_files(model_dir):
        state.update(read_state(file))
    return {name: state[name] for name in _canonical(model_dir, state)}


def checkpoint_shapes(model_dir: str | Path) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of a checkpoint's canonical state; reads headers only."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in _weight_files(model_dir):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - a safetensors handle is no mapping
                shapes[name] = tuple(opened.get_slice(name).get_shape())
    return {name: shapes[name] for name in _canonical(model_dir, shapes)}


def _weight_files(model_dir: str | Path) -> list[Path]:
    root = Path(model_dir)
    if not (root / "config.json").is_file():
        raise UserError(f"{root} has no config.json; give a Hugging Face model directory")
    return weight_files(root)


def _canonical(model_dir: str | Path, names: Iterable[str]) -> list[str]:
    config = json.loads((Path(model_dir) / "config.json").read_text(encoding="utf-8"))
    tied = config.get("tie_word_embeddings", False)
    return [name for name in names if not (tied and name == "lm_head.weight")]
