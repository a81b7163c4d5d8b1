"""The object of a worker, whose class and methods are called by name: in a separate process, or
in this one."""

from importlib import import_module
from typing import Any


class Shell:
    """Holds one object of the class ``target``, "package.module:Class": heavy imports happen where
    it is built. ``built``: the object, where the caller has it already."""

    def __init__(self, target: str, built: Any = None) -> None:
        self._target, self._object = target, built
        self._failure: Exception | None = None

    def build(self, args: tuple[Any, ...]) -> None:
        """Build the object. What its constructor raises is raised by the calls."""
        module, _, name = self._target.partition(":")
        try:
            self._object = getattr(import_module(module), name)(*args)
        except Exception as failure:  # noqa: BLE001 - kept: raised by the caller's first call
            self._failure = failure

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what ``method`` of the object returns."""
        if self._failure is not None:
            raise self._failure
        return getattr(self._object, method)(*args, **kwargs)

    def close(self) -> None:
        """Close the object, if there is one."""
        closed, self._object = self._object, None
        if closed is not None:
            closed.close()
