"""The user's own engine, which ``hardware.rollout.engine`` names (docs/understand/engines.md)."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from rlcore.engines.stop_strings import StopStrings
from rlcore.engines.types import EngineSpec, Generation, RolloutEngine, Sampling, TurnRequest
from rlcore.store.user_modules import import_module
from schemas.errors import UserError, did_you_mean
from schemas.names import split_function

WHERE = "hardware.rollout.engine"
# Methods of ``RolloutEngine`` with their arguments; a class must have the first ones.
METHODS = {
    "generate": ("requests", "sampling"),
    "load_weights": ("update",),
    "stamp": (),
    "probe": ("token_ids",),
    "close": (),
}
OPTIONAL = {"begin": (), "advance": ("requests", "sampling", "wait_s")}


def find_engine(name: str, path: str = WHERE) -> Callable[[EngineSpec], Any]:
    """Return the class ``name``: 'package.module:Class' or 'path/to/file.py:Class', imported here.

    ``path``: where the recipe names it. Raises UserError when there is none, or when it lacks a
    method or takes other arguments than it is called with.
    """
    module_name, class_name = split_function(name)
    names = vars(import_module(module_name, name, path))
    found = names.get(class_name)
    if found is None:
        near = did_you_mean(class_name, names)
        raise UserError(f"{path} = {name!r}: {module_name} has no class {class_name}{near}")
    if not isinstance(found, type):
        kind = type(found).__name__
        raise UserError(f"{path} = {name!r} is of type {kind}, not a class; name a class")
    lacking = [method for method in METHODS if not callable(_own_method(found, method))]
    if lacking:
        raise UserError(
            f"{path} = {name!r} lacks {', '.join(lacking)}; an engine has"
            f" {', '.join(METHODS)}, as docs/understand/engines.md says"
        )
    _check_call(found, ("spec",), f"{path} = {name!r}: {class_name}")
    for method, arguments in {**METHODS, **OPTIONAL}.items():
        if callable(function := _own_method(found, method)):
            _check_call(function, ("self", *arguments), f"{path} = {name!r}: {class_name}.{method}")
    return found


def _own_method(found: type, method: str) -> Any:
    """Return the method of a class; None where it is that of ``RolloutEngine``, which a subclass
    inherits without having it."""
    function = getattr(found, method, None)
    return None if function is getattr(RolloutEngine, method) else function


def _check_call(function: Callable[..., Any], arguments: Sequence[str], what: str) -> None:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        shown = ", ".join(arguments)
        raise UserError(f"{what} is called with ({shown}) and takes others: {error}") from None


class OwnEngine(RolloutEngine):
    """``RolloutEngine`` on an object of the user's class; what that class leaves out is added, also
    that a stop string ends a row."""

    def __init__(self, spec: EngineSpec, name: str) -> None:
        """Build the class ``name`` with ``spec``. Raises UserError as ``find_engine``, and what its
        constructor raises."""
        self._name, self._strings = name, StopStrings(spec.model_dir)
        self._engine = find_engine(name)(spec)
        self.probe, self.load_weights = self._engine.probe, self._engine.load_weights
        self.stamp, self.close = self._engine.stamp, self._engine.close
        self._begin: Callable[[], None] | None = getattr(self._engine, "begin", None)
        self._advance: Callable[..., Any] | None = None
        if _own_method(type(self._engine), "advance") is not None:
            self._advance = self._engine.advance
        self._budgets: dict[str, int] = {}  # of the requests that ``advance`` has not returned

    def begin(self) -> None:
        """See ``RolloutEngine``; nothing where the class has no such method."""
        self._budgets.clear()
        if self._begin is not None:
            self._begin()

    def generate(self, requests: Sequence[TurnRequest], sampling: Sampling) -> list[Generation]:
        """See ``RolloutEngine``. Raises UserError for an answer that is none to ``requests``."""
        rows = self._engine.generate(requests, sampling)
        if len(rows) != len(requests):
            raise UserError(
                f"{WHERE} = {self._name!r}: generate returned {len(rows)} rows for"
                f" {len(requests)} requests; return one Generation per request, in order"
            )
        for request, row in zip(requests, rows, strict=True):
            self._check_row(request.key, request.max_new_tokens, row)
        return [self._strings.ended(row, sampling.stop) for row in rows]

    def advance(
        self, requests: Sequence[TurnRequest], sampling: Sampling, wait_s: float
    ) -> list[tuple[str, Generation]]:
        """See ``RolloutEngine``; whole batches where the class has no such method."""
        if self._advance is None:
            return super().advance(requests, sampling, wait_s)
        self._budgets |= {request.key: request.max_new_tokens for request in requests}
        finished = self._advance(requests, sampling, wait_s)
        for key, row in finished:
            if key not in self._budgets:
                raise UserError(
                    f"{WHERE} = {self._name!r}: advance returned '{key}', which is not under way;"
                    " return each request once, under its key"
                )
            self._check_row(key, self._budgets.pop(key), row)
        return [(key, self._strings.ended(row, sampling.stop)) for key, row in finished]

    def _check_row(self, key: str, budget: int, row: Generation) -> None:
        count = len(row.token_ids)
        if not 1 <= count <= budget or len(row.logprobs) != count:
            raise UserError(
                f"{WHERE} = {self._name!r} answered request '{key}', of at most {budget} tokens,"
                f" with {count} tokens and {len(row.logprobs)} log-probs; return one to {budget}"
                " tokens, the stop token included, and a log-prob of each"
            )
