"""A class of typed, documented methods as an environment: the policy calls them by text, in the
form that the chat templates of Hermes and Qwen show:

    <tool_call>{"name": ..., "arguments": {...}}</tool_call>

(github.com/NousResearch/Hermes-Function-Calling).

TRL takes the same class as ``environment_factory``
(github.com/huggingface/trl/blob/main/docs/source/openenv.md): ``reset(**row)`` once per episode,
every other public method but ``close`` and ``demonstration`` a tool.
"""

import asyncio
import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlcore.envs.types import Start, Step, as_start
from rlcore.models.chat import schema_of
from schemas.errors import UserError, did_you_mean

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool, as the policy wrote it."""

    name: str
    arguments: Mapping[str, Any]


class Malformed(ValueError):
    """A turn that means to call a tool and does not; the message tells the policy what is wrong."""


def call_in(text: str) -> ToolCall | None:
    """Return the call that ``text``, one turn, ends with; None where it holds no tag at all.

    Raises Malformed for more than one call, for text behind it (an answer, or a result made up),
    for a tag without its other half, and for what is not an object of ``name`` and ``arguments``.
    """
    if OPEN not in text and CLOSE not in text:
        return None
    if text.count(OPEN) != 1 or text.count(CLOSE) != 1:
        raise Malformed(f"write exactly one {OPEN} and one {CLOSE} in a turn")
    _, _, rest = text.partition(OPEN)
    body, closed, behind = rest.partition(CLOSE)
    if not closed:
        raise Malformed(f"{CLOSE} stands before {OPEN}")
    if behind.strip():
        raise Malformed(f"write nothing behind {CLOSE}; the result follows")
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        raise Malformed("the call is not JSON") from None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise Malformed('the call is not an object with "name" and "arguments"')
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        raise Malformed('"arguments" is not an object')
    return ToolCall(call["name"], arguments)


def written(call: ToolCall) -> str:
    """Return ``call`` as the policy is to write it."""
    body = {"name": call.name, "arguments": dict(call.arguments)}
    return f"{OPEN}{json.dumps(body, ensure_ascii=False)}{CLOSE}"


_NO_TOOLS = ("reset", "close", "demonstration")


class ToolEnvironment:
    """The tools of one episode.

    A turn without a call is the answer and ends the episode. A call that cannot be read or made is
    answered with what is wrong, and counts as invalid; an exception of the tool is its result.
    """

    def __init__(self, tools: Any) -> None:
        self._tools = tools
        self._names = tool_names(type(tools))

    async def reset(self, row: Mapping[str, Any], seed: int) -> Start:
        """Prepare the tools for ``row``; see ``Environment``."""
        reset = getattr(self._tools, "reset", None)
        if reset is None:
            return Start()
        return as_start(await result_of(reset, **accepted(reset, {**row, "seed": seed})))

    async def step(self, text: str) -> Step:
        """Make the call that ``text`` holds; see ``Environment``."""
        return await step_of_call(text, self._names, self._result)

    async def _result(self, call: ToolCall) -> str:
        method = getattr(self._tools, call.name)
        try:
            inspect.signature(method).bind(**call.arguments)
        except TypeError as error:
            raise Malformed(f"{call.name}: {error}") from None
        try:
            return str(await result_of(method, **call.arguments))
        except Exception as error:  # noqa: BLE001 - the policy may handle what its call raised
            return f"error: {type(error).__name__}: {error}"


async def step_of_call(
    text: str, names: Sequence[str], result: Callable[[ToolCall], Awaitable[str]]
) -> Step:
    """Return the Step that answers ``text``: the ``result`` of its call, or what is wrong with it.

    ``names``: of the tools. ``result`` raises Malformed for arguments that its tool does not take.
    """
    try:
        call = call_in(text)
        if call is None:
            return Step(done=True)
        if call.name not in names:
            near = did_you_mean(call.name, names)
            raise Malformed(f"there is no tool {call.name!r}; there are {', '.join(names)}{near}")
        return Step([{"role": "tool", "content": await result(call)}])
    except Malformed as wrong:
        return Step([{"role": "tool", "content": f"error: {wrong}"}], valid=False)


def tool_names(kind: type) -> list[str]:
    """Return the names of the methods of ``kind`` that are tools, in order of definition."""
    public = (
        name
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name not in _NO_TOOLS
    )
    order = {name: index for index, name in enumerate(dir(kind))}
    for base in reversed(kind.__mro__):
        order.update({name: len(order) + index for index, name in enumerate(vars(base))})
    return sorted(public, key=order.__getitem__)


def schemas_of(kind: type, name: str) -> list[dict[str, Any]]:
    """Return the JSON schemas of the tools of ``kind``, as chat templates take them.

    ``name``: how the recipe names the class. Raises UserError for a class without a tool, and for
    one that is not typed or documented in the form of Google (transformers'
    ``get_json_schema``).
    """
    names = tool_names(kind)
    if not names:
        raise UserError(
            f"environment.name = {name!r} has neither step(text) nor a public method to call as a"
            " tool; add one of the two"
        )
    schemas = []
    for tool in names:
        method = getattr(kind, tool)
        try:
            schemas.append(schema_of(_without_self(method)))
        except ValueError as error:
            raise UserError(
                f"environment.name = {name!r}: the tool {tool}() cannot be described to a policy"
                f" ({error}); give each argument a type and a line under 'Args:' in its docstring"
            ) from None
    return schemas


def accepted(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of ``values`` that ``function`` takes as keyword arguments."""
    parameters = inspect.signature(function).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return dict(values)
    return {name: value for name, value in values.items() if name in parameters}


async def result_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of ``function``, in a separate thread unless it is ``async``."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    value = await asyncio.to_thread(function, *args, **kwargs)
    return await value if inspect.isawaitable(value) else value


def _without_self(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the method's other parameters, for what reads signatures."""

    @functools.wraps(method)
    def tool(*args: Any, **kwargs: Any) -> Any:
        return method(None, *args, **kwargs)

    signature = inspect.signature(method)
    parameters = list(signature.parameters.values())[1:]
    tool.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore[reportAttributeAccessIssue]
    tool.__annotations__ = {k: v for k, v in method.__annotations__.items() if k != "self"}
    return tool
