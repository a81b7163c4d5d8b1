"""The content digest of a model's weights, and the file that carries them from learner to engine.

One definition for both sides. The state is the **canonical HF state**: every tensor of
``model.state_dict()`` once, a shared tensor under the first of its names (``canonical_names``); a
tied ``lm_head.weight`` is therefore absent, as in a checkpoint written by ``save_pretrained``.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import UserError

if TYPE_CHECKING:
    import torch

CHUNK_BYTES = 16 * 2**20  # leaf of the hash tree: one big embedding still hashes on every core


def state_digest(items: "Iterable[tuple[str, torch.Tensor]]", *, threads: int = 0) -> str:
    """Return the hex sha256 of a state: name, dtype, shape and raw bytes of each tensor.

    sha256 over the JSON lines ``[name, dtype, shape, [sha256 of each 16 MiB of bytes]]`` sorted by
    name, so the leaves hash in parallel (hashlib releases the GIL; ``threads`` = 0: one per core).
    Independent of iteration order, strides, device and file layout; a different dtype is a
    different digest. Raises ``UserError`` when a name comes twice.
    """
    tensors = list(items)
    names = [name for name, _ in tensors]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(
            f"state holds '{twice}' twice; pass each tensor once, under its canonical name"
        )
    tensors.sort(key=lambda item: item[0])
    buffers = [_raw_bytes(tensor) for _, tensor in tensors]
    chunks = [
        buffer[start : start + CHUNK_BYTES]
        for buffer in buffers
        for start in range(0, len(buffer), CHUNK_BYTES)
    ]
    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
        leaves = pool.map(lambda chunk: hashlib.sha256(chunk).hexdigest(), chunks)
        total = hashlib.sha256()
        for (name, tensor), buffer in zip(tensors, buffers, strict=True):
            num_chunks = -(-len(buffer) // CHUNK_BYTES)
            row = [name, str(tensor.dtype), list(tensor.shape)]
            row.append([next(leaves) for _ in range(num_chunks)])
            total.update(json.dumps(row).encode() + b"\n")
    return total.hexdigest()


def canonical_names(model: "torch.nn.Module") -> list[str]:
    """Return the names of ``model.state_dict()``, a shared tensor under its first name only.

    Sharing is identity of the parameter object, so the names are right under ZeRO-3 as well, where
    every parameter is an empty placeholder.
    """
    seen: set[int] = set()
    names = []
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            names.append(name)
    return names


def write_state(path: str | Path, state: "Mapping[str, torch.Tensor]") -> None:
    """Write ``state`` (canonical names) to a safetensors file: complete or absent.

    Written beside ``path`` and renamed over it, so a reader never sees a half-written file. Tensors
    may live on any device; views and strides are flattened. safetensors raises ``RuntimeError``
    when two of them share memory: the names were not canonical.
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
    files = sorted(root.glob("model*.safetensors"))
    if not files:
        raise UserError(
            f"{root} holds no model*.safetensors; save the model with save_pretrained first"
        )
    return files


def _canonical(model_dir: str | Path, names: Iterable[str]) -> list[str]:
    config = json.loads((Path(model_dir) / "config.json").read_text())
    tied = config.get("tie_word_embeddings", False)
    return [name for name in names if not (tied and name == "lm_head.weight")]


def _raw_bytes(tensor: "torch.Tensor") -> memoryview:
    """Return the tensor's bytes in C order; no copy for a contiguous CPU tensor."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
