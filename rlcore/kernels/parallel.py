"""Runs a compiled loop on the threads that torch's own operations run on.

A second pool of threads beside torch's would fight it for the cores: the threads of both spin for a
while after their work. So the loop is handed to the OpenMP library that torch has loaded.
"""

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

FIELDS = 24  # numbers that a loop is given
CHUNKS = 32  # parts of a loop's rows; sums of a part do not depend on the number of threads
SMALL = 2048  # elements of a loop that one thread computes sooner


def serves(tensor: torch.Tensor) -> bool:
    """Return whether loops compute ``tensor``: float32 on a CPU, where numba is installed and
    torch's threads are found. Elsewhere torch's operations compute: a machine for GPUs can do
    without numba, and loops on one thread would be slower than they are on many."""
    return (
        tensor.device.type == "cpu"
        and tensor.dtype == torch.float32
        and _compiled()
        and _team() is not None
    )


def run(loop: str, rows: int, *arguments: int | float | torch.Tensor) -> None:
    """Compute ``loop`` of ``rlcore.kernels.loops`` or ``documents`` over ``rows`` rows.

    ``arguments``: its numbers, of which the first is the elements of a row, and contiguous tensors
    on the CPU. Each thread takes a run of chunks of rows, so that it finds in its cache what it
    left there; what is computed does not depend on how many there are.
    """
    team = _team()
    assert team is not None, "serves() says whether there is one"
    fields = [_field(argument) for argument in arguments]
    several = rows * fields[0] > SMALL
    threads = min(torch.get_num_threads(), CHUNKS) if several else 1
    block = (ctypes.c_int64 * FIELDS)(team.number, team.size, rows, *fields)
    function, at = _function(loop), ctypes.addressof(block)
    if threads == 1:
        function(at)
    else:
        team.parallel(function, at, threads, 0)


def _field(argument: int | float | torch.Tensor) -> int:
    if isinstance(argument, torch.Tensor):
        return argument.data_ptr()
    if isinstance(argument, float):
        return _BITS.unpack(_DOUBLE.pack(argument))[0]
    return argument


_BITS, _DOUBLE = struct.Struct("<q"), struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class _Team:
    """``parallel`` calls a function (first) with an address (second) on each thread of a team of so
    many (third), or fewer where variables as OMP_THREAD_LIMIT allow no more. ``number`` and
    ``size``: the addresses of what returns a thread's number in it, and how many there are."""

    parallel: Callable[..., None]
    number: int
    size: int


@cache
def _compiled() -> bool:
    return find_spec("numba") is not None


@cache
def _team() -> _Team | None:
    """Return the threads of the OpenMP library that torch is linked with, None where it is linked
    with none that has the interface of GNU's, as LLVM's and Intel's have on Linux.

    Asked of torch's own library, which finds what it is linked with, whichever of several the
    process has loaded.
    """
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        parallel = library.GOMP_parallel
        asked = library.omp_get_thread_num, library.omp_get_num_threads
    except (OSError, AttributeError):
        return None
    parallel.argtypes = [_Function, ctypes.c_void_p, *[ctypes.c_uint] * 2]
    parallel.restype = None
    number, size = (ctypes.cast(function, ctypes.c_void_p).value for function in asked)
    assert number is not None, "a function has an address"
    assert size is not None, "a function has an address"
    return _Team(parallel, number, size)


_Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@cache
def _function(loop: str) -> Callable[[int], None]:
    # Not imported with this file: where nothing is computed on a CPU, nothing is compiled.
    from rlcore.kernels import loops

    if loop in vars(loops):
        return _Function(vars(loops)[loop].address)
    from rlcore.kernels import documents

    return _Function(vars(documents)[loop].address)
