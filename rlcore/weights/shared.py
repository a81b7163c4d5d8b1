"""A model's weights in memory that other processes of the machine read as a safetensors file."""

import json
import mmap
import os
import struct
from collections.abc import Mapping

import torch

from schemas.errors import UserError

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

_Layout = dict[str, tuple[torch.dtype, tuple[int, ...]]]


class SharedState:
    """One state after the other in the same memory.

    The memory is kept, because the system takes several times longer to provide new memory than to
    copy into what is there. It lies in no folder, so /dev/shm may be small, and the system frees it
    when this process ends, killed or not. Readers are processes of the same user that see this
    process's pid.
    """

    def __init__(self) -> None:
        """Take no memory before the first ``write``."""
        self._layout: _Layout | None = None

    def write(self, state: Mapping[str, torch.Tensor]) -> str:
        """Copy ``state`` over the one before; return the file's path.

        ``state``: canonical names; tensors on any device, of any strides. Until all are copied, and
        after a failure, the file is not readable as safetensors. A reader must not keep views of
        it. Raises UserError for a dtype that the format does not have.
        """
        layout = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items()}
        if layout != self._layout:
            self._allocate(layout)
        self._memory[: _LENGTH.size] = bytes(_LENGTH.size)
        for name, tensor in state.items():
            self._views[name].copy_(tensor.detach())
        self._memory[: _LENGTH.size] = self._header_length
        return f"/proc/{os.getpid()}/fd/{self._file.fileno()}"

    def _allocate(self, layout: _Layout) -> None:
        header, start = _header(layout)
        self._header_length = _LENGTH.pack(start - _LENGTH.size)
        end = start + max((entry["data_offsets"][1] for entry in header.values()), default=0)
        self._file = open(os.memfd_create("rl-weights"), "r+b", buffering=0)  # noqa: SIM115 - kept
        self._file.truncate(end)
        self._memory = mmap.mmap(self._file.fileno(), end)
        self._memory[_LENGTH.size : start] = _encoded(header)
        self._views = {
            name: self._view(dtype, shape, start + header[name]["data_offsets"][0])
            for name, (dtype, shape) in layout.items()
        }
        self._layout = layout

    def _view(self, dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> torch.Tensor:
        count = torch.Size(shape).numel()
        if not count:  # a buffer of no elements is refused
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=offset).view(shape)


def _header(layout: _Layout) -> tuple[dict[str, dict], int]:
    """Return the format's header and the bytes in front of the tensors: wide ones first, so that
    each begins at a multiple of its elements."""
    header, end = {}, 0
    for name, (dtype, shape) in sorted(layout.items(), key=lambda item: -item[1][0].itemsize):
        if dtype not in _DTYPES:
            raise UserError(
                f"'{name}' is of {dtype}, which cannot be sent to an engine; train a model of"
                f" {', '.join(map(str, _DTYPES))}"
            )
        begin, end = end, end + torch.Size(shape).numel() * dtype.itemsize
        entry = {"dtype": _DTYPES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        header[name] = entry
    return header, _LENGTH.size + len(_encoded(header))


def _encoded(header: Mapping[str, dict]) -> bytes:
    text = json.dumps(header).encode()
    return text + b" " * (-len(text) % _LENGTH.size)
