"""The classes of workers by name, "package.module:Class": heavy imports happen where they run."""

import gc
from importlib import import_module
from typing import Any


def class_of(target: str) -> type[Any]:
    """Return the class that ``target`` names, importing its module."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def imports_of(target: str) -> tuple[str, ...]:
    """Return the modules that the class that ``target`` names lists in ``IMPORTS``, if any: those
    that its constructor would import. Imports its own module."""
    return getattr(class_of(target), "IMPORTS", ())


def import_all(target: str) -> None:
    """Import the class that ``target`` names, and the modules of ``imports_of``.

    Without collections of garbage, of which imports leave none, and which take an eighth of their
    time; and what is imported is not looked at by later ones.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        for module in imports_of(target):
            import_module(module)
    finally:
        gc.freeze()
        if collects:
            gc.enable()
