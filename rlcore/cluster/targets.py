"""The classes of workers by name, "package.module:Class": heavy imports happen where they run."""

from importlib import import_module
from typing import Any


def class_of(target: str) -> type[Any]:
    """Return the class that ``target`` names, importing its module."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def import_all(target: str) -> None:
    """Import the class that ``target`` names, and the modules that it lists in ``IMPORTS``, if any:
    those that its constructor would import."""
    for module in getattr(class_of(target), "IMPORTS", ()):
        import_module(module)
