"""The tools of an MCP server as an environment: the policy calls them by text.

One server runs per environment process, over its standard input and output, and is ended with it.
All episodes of the process share its session, so that a tool's answer must depend on its arguments
alone; one that keeps something per episode needs its own class (``rlcore.envs.types``).
A server that ends takes its process with it: the calls under way are made again by the next one.
"""

import asyncio
import json
import os
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
from mcp import Client, MCPError, StdioServerParameters, Tool, stdio_client
from mcp.types import CONNECTION_CLOSED, INVALID_PARAMS

from rlcore.envs.registry import SERVER_ENDED
from rlcore.envs.tools import Malformed, ToolCall, step_of_call
from rlcore.envs.types import Start, Step
from schemas.errors import UserError

_CONNECT_S = 45.0
_SETTLE_S = 0.1
_TAIL_BYTES = 2000
_CLOSED = (CONNECTION_CLOSED, "Connection closed")  # the code alone is also used by servers


class McpTools:
    """The tools of a connected server, which serve any number of episodes: they keep nothing."""

    role = "tool"

    def __init__(self, client: Client, tools: Sequence[Tool]) -> None:
        self._client, self._tools = client, tools
        self._schemas = {tool.name: tool.input_schema for tool in tools}

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Return the JSON schemas of the tools."""
        return [_schema(tool) for tool in self._tools]

    def build(self) -> "McpTools":
        """Return the tools for a new episode."""
        return self

    def demonstration(self, seed: int) -> list[dict[str, str]]:
        """Raise UserError: a server makes no examples."""
        raise UserError(
            "data.sources: an MCP server has neither prompts nor demonstrations; use"
            " sources that have them"
        )

    async def reset(self, row: Mapping[str, Any], seed: int) -> Start:
        """Return no messages: the prompts come from data."""
        return Start()

    async def step(self, text: str) -> Step:
        """Make the call that ``text`` holds; see ``Environment``."""
        return await step_of_call(text, list(self._schemas), self._result)

    async def _result(self, call: ToolCall) -> str:
        arguments = dict(call.arguments)
        wrong = jsonschema.Draft202012Validator(self._schemas[call.name]).iter_errors(arguments)
        if first := next(wrong, None):
            raise Malformed(f"{call.name}: {first.message}")
        try:
            result = await self._client.call_tool(call.name, arguments)
        except MCPError as error:
            if (error.code, error.message) == _CLOSED:
                os._exit(SERVER_ENDED)
            if error.code == INVALID_PARAMS:
                raise Malformed(f"{call.name}: {error.message}") from None
            return f"error: {error.message}"
        said = "\n".join(_shown(block) for block in result.content)
        if not result.content and result.structured_content is not None:
            said = json.dumps(result.structured_content, ensure_ascii=False)
        return f"error: {said}" if result.is_error else said


@asynccontextmanager
async def connected(command: Sequence[str]) -> AsyncIterator[McpTools]:
    """Start the server ``command`` and yield its tools; end it afterwards.

    The program is looked for beside this Python first, then on PATH. Raises UserError when there is
    no such program, when it does not speak MCP, or has no tool.
    """
    tail = await _Tail.opened()
    async with AsyncExitStack() as held:
        try:
            async with asyncio.timeout(_CONNECT_S):
                client = await held.enter_async_context(Client(_transport(command, tail)))
                tools = await _tools(client)
        except Exception as error:  # noqa: BLE001 - whatever a program that is no server causes
            raise UserError(await _no_server(command, error, tail)) from None
        if wrong := _wrong_with(tools):
            await held.aclose()  # an error that leaves the client's task group would be wrapped
            raise UserError(f"{_named(command)}: {wrong}")
        yield McpTools(client, tools)


def _transport(command: Sequence[str], tail: "_Tail") -> Any:
    """Return what starts the server, with the variables that this process has.

    PYTHONPATH is that of this process's own modules, and of another Python's no business.
    """
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    places = [str(Path(sys.executable).parent), variables.get("PATH", os.defpath)]
    variables["PATH"] = os.pathsep.join(places)
    program = shutil.which(command[0], path=variables["PATH"])
    if program is None:
        raise UserError(
            f"{_named(command)}: there is no program {command[0]!r} on PATH; install it where the"
            " environment's workers run, or give its path"
        )
    server = StdioServerParameters(command=program, args=list(command[1:]), env=variables)
    return stdio_client(server, errlog=tail.stream)


async def _tools(client: Client) -> list[Tool]:
    """Return all tools of the server, in its order."""
    tools: list[Tool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return tools


def _schema(tool: Tool) -> dict[str, Any]:
    """Return the tool as chat templates show it (transformers' ``get_json_schema``)."""
    function = {"name": tool.name, "description": tool.description or ""}
    return {"type": "function", "function": {**function, "parameters": tool.input_schema}}


def _wrong_with(tools: Sequence[Tool]) -> str:
    """Return why the tools cannot be used, "" when they can."""
    if not tools:
        return "the server has no tool; start one that has"
    for tool in tools:
        try:
            jsonschema.Draft202012Validator.check_schema(tool.input_schema)
        except jsonschema.SchemaError as error:
            return (
                f"the arguments of its tool {tool.name!r} are described by what is no JSON schema"
                f" ({error.message[:200]}); correct the server"
            )
    return ""


def _shown(block: Any) -> str:
    """Return a part of a result as the policy sees it."""
    texts = (getattr(part, "text", None) for part in (block, getattr(block, "resource", None)))
    return next((t for t in texts if isinstance(t, str)), f"({block.type}, which is not shown)")


def _named(command: Sequence[str]) -> str:
    return f"environment.command = {shlex.join(command)!r}"


async def _no_server(command: Sequence[str], error: Exception, tail: "_Tail") -> str:
    """Return why ``command`` is no server, with the last line that it wrote as an error."""
    if isinstance(error, UserError):
        return str(error)
    last = await tail.last_line()
    what = f"did not answer within {_CONNECT_S:.0f} s" if isinstance(error, TimeoutError) else ""
    return (
        f"{_named(command)} {what or 'does not speak MCP on its standard input and output'}"
        f"{f' ({last})' if last else ''}; give the command that starts an MCP server on stdio"
    )


class _Tail(asyncio.Protocol):
    """The end of what a program writes as errors, read from a pipe."""

    def __init__(self) -> None:
        read, write = os.pipe()
        self._source, self.stream = os.fdopen(read, "rb"), os.fdopen(write, "w", encoding="utf-8")
        self._end = b""

    @classmethod
    async def opened(cls) -> "_Tail":
        """Return a tail that is read from now on."""
        tail = cls()
        await asyncio.get_running_loop().connect_read_pipe(lambda: tail, tail._source)
        return tail

    def data_received(self, data: bytes) -> None:
        """Keep the end of all that was read."""
        self._end = (self._end + data)[-_TAIL_BYTES:]

    async def last_line(self) -> str:
        """Return the last line that was written."""
        await asyncio.sleep(_SETTLE_S)
        lines = self._end.decode(errors="replace").strip().splitlines()
        return lines[-1].strip()[:200] if lines else ""
