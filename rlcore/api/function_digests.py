"""What a Python function does, as digests that another process can compare.

A function that can be imported is the text of its file and of what that imports beside it. Any
other one (a lambda, a notebook's or a script's function) is its bytecode with constants and names,
its defaults, the values it closes over and the globals it reads. A bound method and a callable
object are their class and their attributes.
"""

import dis
import hashlib
import inspect
import json
import logging
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from pathlib import Path, PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from rlcore.store.fingerprint import module_digest

Parts = dict[str, str]
PLAIN = (type(None), bool, int, float, complex, str, bytes, range, type(...), PurePath)
_POINTER = object.__basicsize__ // 2
_LIBRARIES = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")} | {
    Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")
}
_OF_EVERY_CLASS = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__slots__"),
    *("__firstlineno__", "__static_attributes__", "__annotations__", "__annotate__"),
    *("__annotate_func__", "__annotations_cache__"),
    *("__dataclass_fields__", "__dataclass_params__", "__match_args__"),
}


class Incomparable(Exception):
    """A value of which nothing says whether it equals one of another process.

    ``where``: what holds it, from the outside in; ``kind``: its type.
    """

    def __init__(self, value: Any) -> None:
        self.where: list[str] = []
        self.kind = type(value).__name__
        super().__init__(self.kind)


def parts_of(function: Callable[..., Any]) -> Parts:
    """Return a digest for each thing that decides what ``function`` does, by its name in sentences.

    Raises Incomparable for a value whose state is not Python's own: a connection, a lock, a tensor.
    """
    return _Reader().parts(function)


class _Reader:
    """Digests of values; what refers back to itself is met once."""

    def __init__(self) -> None:
        self._within: list[int] = []

    def parts(self, thing: Any) -> Parts:
        """Return the parts of something that can be called, or of an object."""
        source = _importable_source(thing)
        if source is not None:
            return {"source": source}
        if isinstance(thing, FunctionType):
            return self._function(thing)
        if isinstance(thing, MethodType):
            return {"method": self.digest(thing.__func__), **self._owner(thing.__self__)}
        if isinstance(thing, partial):
            given = {f"argument {i}": value for i, value in enumerate(thing.args)}
            given |= {f"argument '{name}'": value for name, value in thing.keywords.items()}
            return {"function": self.digest(thing.func), **self._all(given)}
        if isinstance(thing, BuiltinFunctionType):
            of = {} if isinstance(thing.__self__, ModuleType) else {"owner": thing.__self__}
            return {"name": _hash(thing.__module__ or "", thing.__qualname__), **self._all(of)}
        if hasattr(thing, "__wrapped__"):  # functools.cache
            return self.parts(thing.__wrapped__)
        return self._class(thing) if isinstance(thing, type) else self._object(thing)

    def digest(self, value: Any) -> str:
        """Return a digest that equal values share, in whatever process."""
        if isinstance(value, PLAIN):
            return _hash(type(value).__name__, repr(value))
        if id(value) in self._within:
            return _hash("itself", str(len(self._within) - self._within.index(id(value))))
        self._within.append(id(value))
        try:
            return _hash(*self._inner(value))
        finally:
            self._within.pop()

    def _inner(self, value: Any) -> Iterable[str]:
        kind = type(value).__qualname__
        if isinstance(value, list | tuple):
            return kind, *(self.digest(item) for item in value)
        if isinstance(value, set | frozenset):
            return kind, *sorted(self.digest(item) for item in value)
        if isinstance(value, Mapping):
            return kind, *(d for pair in value.items() for d in map(self.digest, pair))
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            content = hashlib.sha256(value.tobytes()).hexdigest()
            return kind, str(value.dtype), str(value.shape), content
        if isinstance(value, re.Pattern):
            return kind, repr(value.pattern), str(value.flags)
        if isinstance(value, Enum):
            return kind, value.name, self.digest(type(value))
        if isinstance(value, ModuleType):
            return kind, value.__name__, _module_source(value) or ""
        if isinstance(value, logging.Logger):
            return kind, value.name
        if isinstance(value, bytearray | memoryview):
            return kind, bytes(value).hex()
        return kind, json.dumps(self.parts(value), sort_keys=True)

    def _function(self, function: FunctionType) -> Parts:
        code = function.__code__
        names = code.co_freevars
        cells = dict(zip(names, function.__closure__ or (), strict=True))
        held = {f"closure variable '{n}'": c.cell_contents for n, c in cells.items() if _full(c)}
        names = code.co_varnames[: code.co_argcount][-len(function.__defaults__ or ()) or None :]
        defaults = dict(zip(names, function.__defaults__ or (), strict=False))
        defaults |= function.__kwdefaults__ or {}
        held |= {f"default of '{name}'": value for name, value in defaults.items()}
        read = sorted(_globals_read(code) & function.__globals__.keys())
        held |= {f"global '{name}'": function.__globals__[name] for name in read}
        return {"code": _code(code), **self._all(held)}

    def _owner(self, owner: Any) -> Parts:
        return {"class": self.digest(owner)} if isinstance(owner, type) else self._object(owner)

    def _object(self, value: Any) -> Parts:
        kind = type(value)
        slots = [name for base in kind.__mro__ for name in _slots(base)]
        stateless = kind.__basicsize__ <= object.__basicsize__ + _POINTER * (2 + len(slots))
        if not (stateless and all(_in_python(base) for base in kind.__mro__[:-1])):
            raise Incomparable(value)
        held = {f"attribute '{n}'": getattr(value, n) for n in slots if hasattr(value, n)}
        held |= {f"attribute '{n}'": item for n, item in getattr(value, "__dict__", {}).items()}
        return {"class": self.digest(kind), **self._all(held)}

    def _class(self, kind: type) -> Parts:
        if not _in_python(kind):
            return {"name": _hash(kind.__module__, kind.__qualname__)}
        held: dict[str, Any] = {f"base {i}": base for i, base in enumerate(kind.__bases__)}
        attributes: dict[str, Any] = dict(vars(kind))
        for name, item in sorted(attributes.items()):
            if name in _OF_EVERY_CLASS or inspect.ismemberdescriptor(item):
                continue
            if isinstance(item, property):
                held[f"'{name}'"] = (item.fget, item.fset, item.fdel)
            else:
                plain = isinstance(item, staticmethod | classmethod)
                held[f"'{name}'"] = item.__func__ if plain else item
        return self._all(held)

    def _all(self, held: Mapping[str, Any]) -> Parts:
        found = {}
        for name, value in held.items():
            try:
                found[name] = self.digest(value)
            except Incomparable as error:
                error.where.insert(0, name)
                raise
        return found


def _importable_source(thing: Any) -> str | None:
    """Return the digest of the file that ``thing`` is imported from by its name; None where it is
    not one that a module holds under its own name, or the module is the program that was started.
    """
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
    return None if source is None else _hash(source, qualname)


def _module_source(module: ModuleType) -> str | None:
    """Return the digest of a module's file, of the user's with what it imports beside it."""
    file = getattr(module, "__file__", None)
    path = Path(file) if isinstance(file, str) else None
    if path is None or path.suffix != ".py" or not path.is_file():
        return None
    if any(path.is_relative_to(library) for library in _LIBRARIES):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return module_digest(module.__name__, path)


def _code(code: CodeType) -> str:
    """Return the digest of what ``code`` does, wherever it is in its file."""
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(_code(constant))
        elif isinstance(constant, frozenset):
            constants.append(repr(sorted(map(repr, constant))))
        else:
            constants.append(repr(constant))
    shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return _hash(
        code.co_code.hex(), code.co_exceptiontable.hex(), repr(shape), repr(names), *constants
    )


def _globals_read(code: CodeType) -> set[str]:
    """Return the names that ``code``, and what is defined within it, reads from its module."""
    steps = dis.get_instructions(code)
    names = {str(s.argval) for s in steps if s.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return names.union(*(_globals_read(constant) for constant in inner))


def _full(cell: Any) -> bool:
    """Whether a closure's cell has a value yet."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _slots(kind: type) -> list[str]:
    slots = vars(kind).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _in_python(kind: type) -> bool:
    """Whether a class is written in Python: in a file, or where a user types."""
    if kind.__module__ == "__main__":
        return True
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return file.endswith(".py") and bool(kind.__flags__ & 1 << 9)  # a heap type


def _hash(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
