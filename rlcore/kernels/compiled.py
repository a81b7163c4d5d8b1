"""Compiles the loops of this package by numba, and keeps them beside their files."""

import logging
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from numba import cfunc, njit, types

from rlcore.kernels.intrinsics import FAST

logger = logging.getLogger(__name__)
_FOLDER = Path(__file__).parent


def compiled(function: Callable[..., Any]) -> Any:
    """Return ``function``, of one address, as a C function; its ``address`` is what to call.

    Where numba can write, what it compiled is read again by later processes until any file of this
    package changes; else, or where what it kept is torn, a warning says so once.
    """
    signature = types.void(types.CPointer(types.int64))
    # numba compares the time and size of the one file that holds the function.
    function.__qualname__ = f"{function.__name__}_{_content()}"

    def made(*, keep: bool) -> Any:
        return cfunc(signature, cache=keep, fastmath=FAST, error_model="numpy")(function)

    try:
        return made(keep=True)
    except Exception as error:  # noqa: BLE001 - whatever the bytes of a torn file cause
        _warn_once(f"{type(error).__name__}: {error}")
    return made(keep=False)


def import_compiler() -> None:
    """Import what numba imports at the first functions that it compiles, which is most of it."""
    signature = types.float64(types.float64)
    for compiling in (cfunc(signature), njit(signature)):
        compiling(_same)


def _same(number: float) -> float:
    return number


@cache
def _content() -> str:
    """Return a digest of the files of this package."""
    files = sorted(_FOLDER.glob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


_reasons: list[str] = []  # why numba could not keep loops


def _warn_once(why: str) -> None:
    if not _reasons:
        logger.warning(
            "Loops are compiled anew in each process, which takes seconds: numba cannot keep them, "
            "or what it kept is torn (%s). Remove *.nbi and *.nbc in %s, or let the variable "
            "NUMBA_CACHE_DIR name a folder that can be written to",
            why,
            _FOLDER / "__pycache__",
        )
    _reasons.append(why)
