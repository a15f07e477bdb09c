"""A real MCP server for the tests: `python mcp_server.py stdio`, or a port for streamable HTTP."""

from __future__ import annotations

import os
import sys

import anyio
from mcp.server import MCPServer

server = MCPServer("tests")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def process_id() -> int:
    """Which server this is."""
    return os.getpid()


@server.tool()
def fail() -> str:
    """Raise."""
    raise ValueError("no good")


@server.tool()
def die() -> str:
    """End the server."""
    print("I die", file=sys.stderr, flush=True)
    os._exit(1)


@server.tool()
async def hang() -> str:
    """Answer late."""
    await anyio.sleep(1000)
    return "late"


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run()
    else:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
