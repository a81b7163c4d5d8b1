"""Output of a learner's weights: their digest, a file in memory that other processes read, a
file, a Hugging Face directory."""

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from rlcore.learner.engine import FrozenEngine, TrainEngine
from rlcore.learner.model import write_hf_directory
from rlcore.learner.spec import LearnerSpec
from rlcore.models.adapter import ADAPTER_FOLDER, adapter_base_of, compose, write_adapter
from rlcore.models.weight_digest import combined_digest, raw_bytes, tensor_digests
from rlcore.models.weight_names import to_files
from schemas.model import Adapter

# Of the safetensors format: 8 bytes with the length of the header, the header (JSON), the tensors.
_LENGTH = struct.Struct("<Q")
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class SharedState:
    """One state after the other in the same memory.

    The memory is kept, because the system takes several times longer to provide new memory than to
    copy into what is there. It lies in no folder, so /dev/shm may be small, and the system frees it
    when this process ends, killed or not. Readers are processes of the same user that see this
    process's pid.
    """

    def __init__(self) -> None:
        self._file = open(os.memfd_create("rl-weights"), "r+b")  # noqa: SIM115 - kept

    def write(self, state: Mapping[str, torch.Tensor]) -> str:
        """Write ``state`` over the one before; return the file's path.

        ``state``: canonical names; tensors on any device, of any strides. Until all are written,
        and after a failure, the file is not readable as safetensors. A reader must not keep views
        of it.
        """
        # Wide ones first, so that each begins at a multiple of its elements.
        tensors = sorted(state.items(), key=lambda item: -item[1].itemsize)
        header, end = {}, 0
        for name, tensor in tensors:
            begin, end = end, end + tensor.nbytes
            place = {"shape": list(tensor.shape), "data_offsets": [begin, end]}
            header[name] = {"dtype": _DTYPES[tensor.dtype], **place}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % _LENGTH.size)
        self._start_with(bytes(_LENGTH.size))
        self._file.write(text)
        for _, tensor in tensors:
            self._file.write(raw_bytes(tensor))
        self._file.truncate()
        self._start_with(_LENGTH.pack(len(text)))
        return f"/proc/{os.getpid()}/fd/{self._file.fileno()}"

    def _start_with(self, length: bytes) -> None:
        self._file.seek(0)
        self._file.write(length)
        self._file.flush()


class LearnerWeights:
    """The weights of one rank's engine, in file names (``models.weight_names``). Every method is
    collective."""

    def __init__(self, engine: TrainEngine | FrozenEngine, spec: LearnerSpec, rank: int) -> None:
        self._engine, self._spec, self._rank = engine, spec, rank
        self._known: dict[str, str] | None = None  # the digest of each tensor
        self._shared: list[SharedState] = []  # the newest last

    def changed(self) -> None:
        """Forget the digests."""
        self._known = None

    def digest(self) -> str:
        """Return the digest of the whole state, on every rank. Hashes once per change."""
        return combined_digest(self._known or self._hashed(self._on_first_rank()))

    def share(self, kept: int) -> tuple[str, dict[str, str]]:
        """Write the state where other processes read it, over the oldest where ``kept`` are there;
        return the path of that file (rank 0; "" on others), the digest of each tensor."""
        state = self._on_first_rank()
        shared = SharedState() if len(self._shared) < kept else self._shared.pop(0)
        self._shared.append(shared)
        known = self._known or self._hashed(state)  # the ranks meet there, so before it may fail
        return shared.write(state) if self._rank == 0 else "", known

    def export(self, directory: Path, *, architecture: str) -> None:
        """Write a Hugging Face directory (rank 0) of the model class ``architecture``."""
        state = self._on_first_rank()
        if self._rank == 0:
            write_hf_directory(
                directory,
                source=Path(self._spec.model_dir),
                state=state,
                dtype=self._spec.dtype,
                architecture=architecture,
            )
            if self._spec.adapter is not None and self._spec.head == "lm":
                self._export_adapter(directory.parent / ADAPTER_FOLDER, self._spec.adapter)

    def _export_adapter(self, target: Path, adapter: Adapter) -> None:
        """Write the adapter; on top of the one that the stage before trained, if any."""
        spec, lm = self._spec, self._engine.lm
        below = Path(spec.model_dir).parent / ADAPTER_FOLDER
        # Another base than this run's: the adapter below is part of what this one is for.
        if adapter_base_of(below) != spec.adapter_base:
            write_adapter(lm, adapter, target, spec.adapter_base)
            return
        with TemporaryDirectory() as folder:
            own = Path(folder) / ADAPTER_FOLDER
            write_adapter(lm, adapter, own, spec.adapter_base)
            compose([below, own], target, spec.adapter_base)

    def _on_first_rank(self) -> dict[str, torch.Tensor]:
        """The whole state in file names on CPU on rank 0; other ranks take part and keep nothing.

        The ranks of a frozen learner are independent: each keeps its own copy.
        """
        gathered = self._spec.zero_stage == 3 and self._spec.trainable
        state: dict[str, torch.Tensor] = {}
        for name, tensor in self._engine.state():
            if self._rank == 0 or not self._spec.trainable:
                state[name] = tensor.cpu().clone() if gathered else tensor.cpu()
        return to_files(self._engine.lm, state)

    def _hashed(self, state: dict[str, torch.Tensor]) -> dict[str, str]:
        """The digests of rank 0's tensors, on every rank."""
        known: dict[str, str] = self._engine.exchange(tensor_digests(state.items()))[0]
        self._known = known
        return known
