"""An MCP server with a few tools, written with the SDK, for tests."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("shop")


@server.tool()
def price(thing: str, count: int = 1) -> str:
    """Return the price of some things.

    Args:
        thing: What is bought.
        count: How many.
    """
    return f"{len(thing) * count} coins"


@server.tool()
def variable(name: str) -> str:
    """Return an environment variable."""
    return os.environ.get(name, "(not set)")


@server.tool()
def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)


@server.tool()
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "done"


@server.tool()
def die(marker: str) -> str:
    """End the server, once per ``marker``, a file; always without one."""
    if marker and Path(marker).exists():
        return "alive"
    if marker:
        Path(marker).touch()
    os.kill(os.getpid(), signal.SIGKILL)
    return "not reached"


@server.tool()
def nothing() -> str:
    """Return an empty text."""
    return ""


@server.tool()
def pid() -> str:
    """Return the server's process id."""
    return str(os.getpid())


if __name__ == "__main__":
    if sys.argv[1:] == ["no-tool"]:
        server = MCPServer("nothing")
    server.run("stdio")
