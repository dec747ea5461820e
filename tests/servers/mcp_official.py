"""An MCP server of the official package: on standard streams, or with --http over HTTP, at a port that it prints."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

server = MCPServer("notes")
JSON = "--json" in sys.argv


class Author(BaseModel):
    """Who wrote a note."""

    name: str


class Note(BaseModel):
    """A note, with models in models, which makes references in its schema."""

    text: str
    authors: list[Author] = []


kept: list[Note] = []


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def keep(note: Note) -> list[Note]:
    """Keep a note; answers with all of them."""
    kept.append(note)
    return kept


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("It is raining.")


@server.tool()
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


@server.tool()
def where() -> str:
    """Tell where it runs."""
    return f"{os.getuid()} {Path.cwd()} {Path('/.dockerenv').exists()}"


@server.tool()
def end() -> str:
    """End the server."""
    sys.stderr.write("ended as asked\n")
    sys.stderr.flush()
    os._exit(7)


if "--http" in sys.argv:
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        app = server.streamable_http_app(json_response=JSON)
        uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
else:
    server.run()
