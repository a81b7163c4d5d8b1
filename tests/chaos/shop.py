"""An MCP server of one tool, which writes down that it was called, and takes its time.

python shop.py; the file is $CHAOS_CALLS
"""

import asyncio
import os

from mcp.server.mcpserver import MCPServer

SECONDS = 0.25  # most of an iteration: a kill at any time is between two turns
server = MCPServer("shop")


@server.tool()
async def price(thing: str) -> str:
    """Return the price of a thing.

    Args:
        thing: What is bought.
    """
    with open(os.environ["CHAOS_CALLS"], "a", encoding="utf-8") as calls:
        calls.write(".")
    await asyncio.sleep(SECONDS)
    return str(len(thing))


if __name__ == "__main__":
    server.run("stdio")
