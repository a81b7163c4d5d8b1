"""Weights as safetensors files: those that hold a model and what their headers say, those that a
flow sends to its engines, and those that killed flows left.

Read without torch and without any weights.
"""

import json
import os
import re
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlcore.store.file_stamps import is_abandoned
from schemas.errors import UserError

if TYPE_CHECKING:
    import torch


WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_SHARDS = "model-*-of-*.safetensors"
_PICKLED = ("*.bin", "*.pt", "*.pth")
_POINTER = b"version https://git-lfs"
_AGAIN = "fetch or save the model again"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file. ``dtype``: the format's name of it, such as ``BF16``."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]


def weight_files(directory: Path) -> list[Path]:
    """Return the files that every loader of Hugging Face directories reads: those that the index
    names, else model.safetensors.

    Raises ``UserError`` where there are none, some are missing, or there are others beside them,
    which some loaders would read instead.
    """
    single, index = directory / WEIGHTS_FILE, directory / INDEX_FILE
    found = {file.name for file in (single, *directory.glob(_SHARDS)) if file.is_file()}
    named = set(_weight_map(index).values()) if index.is_file() else {WEIGHTS_FILE} & found
    if not found:
        raise UserError(
            f"model.path = '{directory}' holds no model*.safetensors{_pickled(directory)}; save the"
            " model with save_pretrained first"
        )
    if not named:
        raise UserError(
            f"model.path = '{directory}' holds {min(found)} and no {INDEX_FILE} that says which"
            " files the model consists of; fetch the model again"
        )
    missing = {n for n in named if Path(n).name != n or not (directory / n).is_file()}
    if missing:
        raise UserError(
            f"model.path = '{directory}' lacks {len(missing)} of {len(named)} weight files of its"
            f" index, such as {min(missing)}; fetch the model again"
        )
    if others := found - named:
        raise UserError(
            f"model.path = '{directory}' holds {min(others)} beside the model's weight files"
            f" ({min(named)}{', ...' if len(named) > 1 else ''}), and loaders differ in which they"
            " read; remove those that are not the model's"
        )
    return [directory / name for name in sorted(named)]


def _pickled(directory: Path) -> str:
    files = sorted(file.name for pattern in _PICKLED for file in directory.glob(pattern))
    return f", only {files[0]}, which is not read because a pickle may run code" if files else ""


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Return what the weight files of ``directory`` hold, by name, from their headers.

    Raises ``UserError`` as ``weight_files``, for a file that is truncated or otherwise not
    safetensors, and where shards and index differ.
    """
    files = weight_files(directory)
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for name, tensor in _header(file).items():
            if name in tensors:
                raise UserError(
                    f"weights files {tensors[name].file} and {file.name} both hold '{name}';"
                    f" {_AGAIN}"
                )
            tensors[name] = tensor
    index = directory / INDEX_FILE
    if index.is_file():
        _check_index(index, tensors)
    return tensors


def _check_index(index: Path, tensors: dict[str, StoredTensor]) -> None:
    listed = _weight_map(index)
    for name in sorted(listed.keys() | tensors.keys()):
        said = listed.get(name)
        held = tensors[name].file.name if name in tensors else None
        if said != held:
            raise UserError(
                f"{index} says that '{name}' is in {said or 'no file'}, and it is in"
                f" {held or 'none'}; {_AGAIN}"
            )


def _weight_map(index: Path) -> dict[str, str]:
    refuse_pointer(index)
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{index} cannot be read: {error!r}; fetch the model again") from error
    if not isinstance(listed, dict) or not all(isinstance(f, str) for f in listed.values()):
        raise UserError(f"{index} has no weight_map of tensors to files; fetch the model again")
    return listed


def _header(file: Path) -> dict[str, StoredTensor]:
    """Return what the header says, which the library checks against the size of the file."""
    from safetensors import SafetensorError, safe_open

    refuse_pointer(file)
    try:
        with safe_open(file, framework="np") as opened:
            held = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:  # untrusted input: name the file
        raise UserError(
            f"weights file {file} is not a readable safetensors file ({file.stat().st_size:,}"
            f" bytes: {error}); {_AGAIN}"
        ) from None
    return {
        name: StoredTensor(name, file, each.get_dtype(), tuple(each.get_shape()))
        for name, each in held.items()
    }


def refuse_pointer(file: Path) -> None:
    """Raise ``UserError`` where ``file`` is the text that Git LFS has in a file's place."""
    with file.open("rb") as stream:
        if stream.read(len(_POINTER)) == _POINTER:
            raise UserError(
                f"{file} is a pointer of Git LFS in place of the file; run `git lfs pull` there"
            )


# ``files.exchange_file`` names its file by its process's pid; ``files.write_state`` writes next to
# it first, and adds its own.
_EXCHANGED = re.compile(
    r"rl-weights-(?P<flow>\d+)-[0-9a-f]{8}\.safetensors"
    r"|\.rl-weights-\d+-[0-9a-f]{8}\.safetensors\.(?P<writer>\d+)"
)


def exchange_folder() -> Path:
    """Return /dev/shm, or where there is none the folder of temporary files."""
    shared_memory = Path("/dev/shm")
    return shared_memory if shared_memory.is_dir() else Path(tempfile.gettempdir())


def remove_abandoned_weights(folder: Path | None = None) -> None:
    """Remove the files of this user whose processes on this machine have ended.

    Done before such a file is written, and when a run ends. ``folder``: by default
    ``exchange_folder()``.
    """
    for entry in os.scandir(folder or exchange_folder()):
        found = _EXCHANGED.fullmatch(entry.name)
        if found is None:
            continue
        with suppress(FileNotFoundError):  # removed by another run meanwhile
            ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
            if ours and is_abandoned(Path(entry.path), int(found["flow"] or found["writer"])):
                Path(entry.path).unlink()


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
    repeated = _repeated(model_dir)
    state: dict[str, torch.Tensor] = {}
    for file in weight_files(Path(model_dir)):
        state.update(read_state(file))
    return {name: tensor for name, tensor in state.items() if name not in repeated}


def checkpoint_shapes(model_dir: str | Path) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of a checkpoint's canonical state; reads headers only. Raises
    ``UserError`` as ``stored_tensors``, and without a ``config.json``."""
    repeated, held = _repeated(model_dir), stored_tensors(Path(model_dir))
    return {name: tensor.shape for name, tensor in held.items() if name not in repeated}


def _repeated(model_dir: str | Path) -> tuple[str, ...]:
    """Return the names of tensors that some checkpoints repeat under another."""
    file = Path(model_dir) / "config.json"
    if not file.is_file():
        raise UserError(f"{model_dir} has no config.json; give a Hugging Face model directory")
    config = json.loads(file.read_text(encoding="utf-8"))
    return ("lm_head.weight",) if config.get("tie_word_embeddings", False) else ()
