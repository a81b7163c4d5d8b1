"""How a user's reward function is called, by its signature.

Taken are ``f(prompt, response)`` and ``f(data_source, solution, ground_truth, extra_info)``, and of
a batch function ``f(rows)``, each with the function's options as keyword arguments. Functions that
would be called with something else than their parameters' names say are refused: they would return
wrong scores, not errors.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from schemas.errors import UserError, did_you_mean

SHORT = ("prompt", "response")
LONG = ("data_source", "solution", "ground_truth", "extra_info")
BATCH = "rows"
TAKEN = f"({', '.join(SHORT)}) or ({', '.join(LONG)})"
# Names with a fixed meaning -> the argument that each takes.
_MEANS = {
    **{name: name for name in (*SHORT, *LONG)},
    "question": "prompt",
    "completion": "response",
    "solution_str": "solution",
}
_SAME = {"response": "solution", "solution": "response"}
# TRL calls its functions once per batch, with lists.
_BATCHES = ("prompts", "completions", "completion_ids")


def takes_ground_truth(
    function: Callable[..., Any], options: Mapping[str, Any], name: str, path: str
) -> bool:
    """Return whether ``function`` is called with the four arguments of ``LONG``, not ``SHORT``.

    ``path``: where the recipe names it. Raises UserError for any other signature, and for an option
    that is no parameter.
    """
    signature = _signature(function, name, path)
    if any(parameter in signature.parameters for parameter in _BATCHES):
        raise UserError(
            f"{path}.name = {name!r} has TRL's signature {signature}, which takes lists; a function"
            f" here scores one response: take {TAKEN}, or ({BATCH}) with {path}.batch = true"
        )
    _check_options(signature, options, name, path)
    for wanted in (LONG, SHORT):
        try:
            bound = signature.bind(*wanted, **options)
        except TypeError:
            continue
        _check_names(bound, wanted, options, name, path)
        return wanted is LONG
    raise UserError(
        f"{path}.name = {name!r} has the signature {signature}; with the options "
        f"{sorted(options)} it must take {TAKEN}, or (rows) with {path}.batch = true"
    )


def check_batch(
    function: Callable[..., Any], options: Mapping[str, Any], name: str, path: str
) -> None:
    """Raise UserError unless ``function`` takes one list of rows, and ``options`` as keywords."""
    signature = _signature(function, name, path)
    _check_options(signature, options, name, path)
    try:
        signature.bind(BATCH, **options)
        is_taken = next(iter(signature.parameters)) not in _MEANS
    except TypeError:
        is_taken = False
    if not is_taken:
        raise UserError(
            f"{path}.name = {name!r} has the signature {signature} and {path}.batch = true, where"
            f" it must take ({BATCH}), a list of dicts; take that, or leave batch out"
        )


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Return whether calling ``function``, or the instance that it is, gives a coroutine."""
    called = getattr(function, "__call__", None)  # noqa: B004 - the method itself is looked at
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _signature(function: Callable[..., Any], name: str, path: str) -> inspect.Signature:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UserError(f"{path}.name = {name!r} is a generator; return the score, do not yield it")
    if inspect.isclass(function):
        raise UserError(
            f"{path}.name = {name!r} is a class; name a function, or an instance that can be called"
        )
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        raise UserError(
            f"{path}.name = {name!r} has no signature that Python can read; name a function of"
            f" {TAKEN} that calls it"
        ) from None


def _check_options(
    signature: inspect.Signature, options: Mapping[str, Any], name: str, path: str
) -> None:
    parameters = signature.parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for option in options:
        if option not in known:
            raise UserError(
                f"{path}.options.{option} is not a parameter of {name!r}, which has the signature"
                f" {signature}{did_you_mean(option, known) or '; leave it out'}"
            )


def _check_names(
    bound: inspect.BoundArguments,
    wanted: tuple[str, ...],
    options: Mapping[str, Any],
    name: str,
    path: str,
) -> None:
    """Refuse a parameter that is named as one argument and would be given another, or none."""
    for parameter in bound.signature.parameters.values():
        meant, given = _MEANS.get(parameter.name), bound.arguments.get(parameter.name)
        is_one = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if meant is None or not is_one or parameter.name in options:
            continue
        if given is None:
            is_right, what = wanted is LONG or meant not in LONG, "is never given"
        else:
            is_right, what = given in (meant, _SAME.get(meant)), f"would be the {given}"
        if is_right:
            continue
        raise UserError(
            f"{path}.name = {name!r} has the signature {bound.signature} and is called with"
            f" ({', '.join(wanted)}), so that its {parameter.name} {what}; it must take {TAKEN}"
        )
