"""A client of MCP servers: their tools as actions.

The official package is not used: it is made for asyncio, takes a second of processor time to import, brings a second HTTP library
and a web server along, and reads what a server sends without a bound. What is needed of the protocol is small: the handshake of its
versions 2024-11-05 to 2025-11-25, ``tools/list`` and ``tools/call``, over standard streams or streamable HTTP. The tests speak with
servers of the official package.
"""

from .client import McpClient
from .http import HttpWire
from .stdio import SandboxWire
from .tools import Tool
from .wire import Wire

__all__ = ["HttpWire", "McpClient", "SandboxWire", "Tool", "Wire"]
