"""A server that an agent uses. Its tools must keep their first declaration, and it is started again after it died."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from sandbox.errors import ErrorCode, OperationError

from .results import shown_result
from .tools import Tool

if TYPE_CHECKING:  # the SDK is imported only when a server is used
    from .client import McpClient, Wire

LISTING_SECONDS = 60.0


class Server:
    """The tools of a server, and calls of them, from any thread.

    A call may take ``seconds``. ``only`` names the tools to use (default: all). A server that is ``optional`` need not start.
    ``problems`` says what the start left out, and why. ``first`` has the fingerprints of the tools that may be called.
    """

    def __init__(
        self,
        name: str,
        make_wire: Callable[[], Wire],
        *,
        seconds: float,
        only: Collection[str] | None = None,
        optional: bool = False,
    ) -> None:
        self.name = name
        self.optional = optional
        self.tools: tuple[Tool, ...] = ()
        self.problems: tuple[str, ...] = ()
        self._make_wire = make_wire
        self._seconds = seconds
        self._only = only
        self._probe = True
        self._client: McpClient | None = None
        self._lock = threading.Lock()
        self._fingerprints: dict[str, str] = {}
        self._listed_at = 0.0
        self.first: dict[str, str] = {}

    def start(self) -> None:
        """Start the server and list its tools: from now on they must not change. Raises OperationError."""
        with self._lock:
            self.tools = tuple(t for t in self._connect() if self._only is None or t.name in self._only)
            left_out = self._client.problems if self._client is not None else []
        missing = (f"it has no tool {name!r}" for name in self._only or () if name not in self._fingerprints)
        self.problems = (*(f"a tool is left out: {problem}" for problem in left_out), *missing)
        self.first = {tool.name: tool.fingerprint for tool in self.tools}

    @property
    def ended(self) -> str:
        """Why the connection is gone; empty while it is not."""
        return self._client.wire.ended if self._client is not None else ""

    @property
    def version(self) -> str:
        """The version of the protocol that the session has; empty without one."""
        return self._client.version if self._client is not None else ""

    def call(self, tool: str, args: Mapping[str, Any]) -> str | dict[str, Any]:
        """Call a tool, and return its answer: text, or a mapping with structured data or images. Raises OperationError."""
        with self._lock:
            if self._client is None or self._client.wire.ended:
                self._connect()
            elif self._client.changed.is_set() or self._listing_is_old(self._client):
                self._list(self._client)
            client = self._client
        if client is None or self._fingerprints.get(tool) != self.first.get(tool):
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
        return str(shown["text"]) if shown.keys() == {"text"} else shown

    def close(self) -> None:
        """End the session, and a server that was started for it; may be called more than once."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connect(self) -> list[Tool]:
        """Connect, and return the tools. Raises OperationError."""
        from .client import McpClient

        if self._client is not None:
            self._client.close()
        client = McpClient(self._make_wire(), probe=self._probe)
        try:
            client.connect()
        except OperationError:
            if not client.ended_by_probe:
                raise
            # Some servers of older versions exit on a first message that is not theirs.
            client = McpClient(self._make_wire(), probe=False)
            client.connect()
        self._client = client
        self._probe = not client.is_handshake
        return self._list(client)

    def _listing_is_old(self, client: McpClient) -> bool:
        """Return whether to list the tools again: from 2026-07-28 on a server does not report changes by itself."""
        return not client.is_handshake and time.monotonic() - self._listed_at > LISTING_SECONDS

    def _list(self, client: McpClient) -> list[Tool]:
        tools = client.tools()
        self._listed_at = time.monotonic()
        self._fingerprints = {tool.name: tool.fingerprint for tool in tools}
        return tools
