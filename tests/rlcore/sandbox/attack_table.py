"""The table of attacks, which the modules of attacks fill; imported inside the sandbox."""

import ctypes
import platform
from collections.abc import Callable
from typing import Any

X86 = platform.machine() == "x86_64"
C: Any = ctypes.CDLL(None, use_errno=True)
Attack = Callable[[dict[str, Any]], bool]
ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    """Add ``function`` to the table, by its name."""
    ATTACKS[function.__name__] = function
    return function
