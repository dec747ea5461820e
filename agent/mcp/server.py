"""One server an agent uses: held to what its tools first said of themselves, and started anew when it died."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sandbox.errors import ErrorCode, OperationError

from .client import McpClient
from .tools import Tool, shown_result
from .wire import Wire


class Server:
    """The tools of a server, and calls of them. ``only`` leaves out all others; ``seconds`` is what a call may take; one that is
    ``optional`` need not start. ``problems`` are what the start left out, and why.
    """

    def __init__(
        self, name: str, make_wire: Callable[[], Wire], *, seconds: float, only: Collection[str] | None = None,
        optional: bool = False,
    ) -> None:
        self.name = name
        self.optional = optional
        self.tools: tuple[Tool, ...] = ()
        self.problems: tuple[str, ...] = ()
        self._make_wire = make_wire
        self._seconds = seconds
        self._only = only
        self._client: McpClient | None = None
        self._lock = threading.Lock()
        self._now: dict[str, str] = {}
        self.first: dict[str, str] = {}

    def start(self) -> None:
        """Start it and learn its tools, which count from now on. Raises OperationError."""
        with self._lock:
            self.tools = tuple(t for t in self._connected() if self._only is None or t.name in self._only)
            left_out = self._client.problems if self._client is not None else []
        missing = (f"it has no tool {name!r}" for name in self._only or () if name not in self._now)
        self.problems = (*(f"a tool is left out: {problem}" for problem in left_out), *missing)
        self.first = {tool.name: tool.fingerprint for tool in self.tools}

    @property
    def ended(self) -> str:
        """Why it is gone, or empty."""
        return self._client.wire.ended if self._client is not None else ""

    def call(self, tool: str, args: Mapping[str, Any]) -> str | dict[str, Any]:
        """What the tool answered: text, or structured data. Raises OperationError."""
        with self._lock:
            if self._client is None or self._client.wire.ended:
                self._connected()
            elif self._client.changed.is_set():
                self._learn(self._client)
            client = self._client
        if client is None or self._now.get(tool) != self.first.get(tool):
            raise OperationError(
                ErrorCode.invalid_result,
                f"The tool {tool!r} of the MCP server {self.name!r} is not what it was at the start, and was not called.",
                "Do without it, and tell the user that it changed.",
            )
        result = client.call(tool, args, self._seconds)
        shown = shown_result(result)
        if result.get("isError") is True:
            raise OperationError(
                ErrorCode.tool_error,
                f"{tool} failed: {shown.get('text') or shown.get('structured') or 'it did not say why'}"[:10_000],
                "Check the arguments against what the tool expects, or choose another way.",
                effects="unknown",
            )
        return shown if "structured" in shown else str(shown["text"])

    def close(self) -> None:
        """End it; may be called more than once."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self) -> list[Tool]:
        """A new connection, and its tools. Raises OperationError."""
        if self._client is not None:
            self._client.close()
        client = McpClient(self._make_wire())
        client.connect()
        self._client = client
        return self._learn(client)

    def _learn(self, client: McpClient) -> list[Tool]:
        tools = client.tools()
        self._now = {tool.name: tool.fingerprint for tool in tools}
        return tools
