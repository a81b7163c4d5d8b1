"""What a Python function does, as a digest that another process can compare.

A function that can be imported is the text of its file and of what that imports beside it. Any
other one (a lambda, a notebook's or a script's function, a callable object) is its code with all
that it refers to, pickled as ``datasets`` does to find what it computed before; what it refers to
in a module counts as the text of that.
"""

import hashlib
import io
import json
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from rlcore.store.fingerprint import module_digest

Parts = dict[str, str]
_LIBRARIES = [
    Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")
]


class Incomparable(Exception):
    """Something that a function refers to cannot be pickled, as a connection; says what."""


def parts_of(function: Callable[..., Any]) -> Parts:
    """Return the digest of what decides what ``function`` does, by what it is of: "source" or
    "code". Raises Incomparable where it holds a state that is not Python's own."""
    source = _importable_source(function)
    return {"code": _code(function)} if source is None else {"source": source}


def _code(function: Callable[..., Any]) -> str:
    from datasets.utils._dill import Pickler  # takes seconds

    class Digested(Pickler):
        """Nothing is ever unpickled, so that what stands for an object may be written for it."""

        def save(self, obj: Any, save_persistent_id: bool = True) -> None:
            source = _importable_source(obj)
            if source is not None:
                obj = source
            elif isinstance(obj, frozenset):  # a constant, whose order differs between processes
                obj = sorted(obj, key=repr)
            super().save(obj, save_persistent_id)

    pickled = io.BytesIO()
    try:
        Digested(pickled, recurse=True).dump(function)
    except Exception as error:  # whatever methods of the user's objects raise
        raise Incomparable(str(error)) from error
    return hashlib.sha256(pickled.getvalue()).hexdigest()


def _importable_source(thing: Any) -> str | None:
    """Return the digest of a module, or of that which ``thing`` is imported from by its name; None
    where it is not one that a module of the user's holds under its own name, or the module is the
    program that was started."""
    if isinstance(thing, ModuleType):
        return _module_source(thing)
    name, qualname = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(name, str) or not isinstance(qualname, str) or name == "__main__":
        return None
    module = sys.modules.get(name)
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if module is None or found is not thing:
        return None
    source = _module_source(module)
    return None if source is None else digest_of([source, qualname])


def _module_source(module: ModuleType) -> str | None:
    """Return the digest of a module's file, of the user's with what it imports beside it."""
    file = getattr(module, "__file__", None)
    path = Path(file) if isinstance(file, str) else None
    if path is None or path.suffix != ".py" or not path.is_file():
        return None
    if any(path.is_relative_to(library) for library in _LIBRARIES):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return module_digest(module.__name__, path)


def digest_of(value: Any) -> str:
    """Return the hex sha256 of ``value`` as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
