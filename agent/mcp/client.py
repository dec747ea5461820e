"""The client's side of the protocol: the handshake, the list of tools, and calls."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from typing import Any

from sandbox.errors import ErrorCode, OperationError, SandboxError

from .tools import Tool, tool_of
from .wire import MAX_WORDS, Message, Wire, nonsense, refusal

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
START_SECONDS = 30.0
MAX_PAGES = 50
MAX_TOOLS = 200
INVALID_PARAMS = -32602


class McpClient:
    """One server over ``wire``. ``changed`` is set when it says that its tools are others now. Calls may come from any thread."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.changed = threading.Event()
        self.problems: list[str] = []
        self._numbers = itertools.count(1)

    def connect(self) -> None:
        """Open the wire and agree on a version. Raises OperationError; nothing is left open then."""
        try:
            self.wire.open(self._unasked)
            params = {
                "protocolVersion": VERSIONS[0],
                "capabilities": {},
                "clientInfo": {"name": "gamebox", "version": "1"},
            }
            result = self._ask("initialize", params, START_SECONDS)
            version = result.get("protocolVersion")
            if version not in VERSIONS:
                raise nonsense(f"a version of the protocol that is not known here, {str(version)[:40]!r}")
            self._tell("notifications/initialized")
        except BaseException:
            self.wire.close()
            raise

    def tools(self) -> list[Tool]:
        """The tools of the server, by name; what is no tool is in ``problems``. Raises OperationError."""
        self.changed.clear()
        found: dict[str, Tool] = {}
        self.problems = []
        cursor: Any = None
        until = time.monotonic() + START_SECONDS  # for all pages together
        for _ in range(MAX_PAGES):
            left = max(until - time.monotonic(), 0.1)
            result = self._ask("tools/list", {"cursor": cursor} if cursor else {}, left)
            listed = result.get("tools")
            for declared in listed if isinstance(listed, list) else ():
                try:
                    tool = tool_of(declared)
                except ValueError as error:
                    self.problems = [*self.problems, str(error)][:MAX_TOOLS]
                    continue
                if tool.name in found or len(found) >= MAX_TOOLS:
                    self.problems = [*self.problems, f"{tool.name!r} is left out"][:MAX_TOOLS]
                else:
                    found[tool.name] = tool
            cursor = result.get("nextCursor")
            if not isinstance(cursor, str) or not cursor or len(cursor) > MAX_WORDS:
                break
        return [found[name] for name in sorted(found)]

    def call(self, tool: str, args: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """What the tool answered, as the server sent it: ``content``, maybe ``structuredContent`` and ``isError``.

        Raises OperationError.
        """
        return self._ask("tools/call", {"name": tool, "arguments": dict(args)}, seconds)

    def close(self) -> None:
        """End it; may be called more than once."""
        self.wire.close()

    def _ask(self, method: str, params: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        ident = next(self._numbers)
        try:
            answer = self.wire.ask({"jsonrpc": "2.0", "id": ident, "method": method, "params": dict(params)}, seconds)
        except OperationError as error:
            if error.code is ErrorCode.timeout and method != "initialize":
                self._give_up(ident)
            raise
        if "error" in answer:
            raise _fault(method, answer["error"])
        result = answer.get("result")
        if not isinstance(result, dict):
            raise nonsense(f"an answer to {method} that is no object")
        return result

    def _tell(self, method: str, **params: Any) -> None:
        self.wire.tell({"jsonrpc": "2.0", "method": method, **({"params": params} if params else {})})

    def _give_up(self, ident: int) -> None:
        try:
            self._tell("notifications/cancelled", requestId=ident, reason="It took too long.")
        except SandboxError:
            pass  # the timeout is what is told

    def _unasked(self, message: Message) -> None:
        """What the server sends of its own accord: it may ask whether we are there, and nothing else."""
        method = message.get("method")
        if method == "notifications/tools/list_changed":
            self.changed.set()
        if message.get("id") is None:
            return
        pong: Message = {"jsonrpc": "2.0", "id": message["id"], "result": {}}
        try:
            self.wire.tell(pong if method == "ping" else refusal(message))
        except SandboxError:
            pass  # it learns that we are gone as we learn that it is


def _fault(method: str, error: Any) -> OperationError:
    """The failure for an error of JSON-RPC."""
    fields = error if isinstance(error, dict) else {}
    words = f"The MCP server refused {method}: {str(fields.get('message', error))[:MAX_WORDS]}"
    if fields.get("code") == INVALID_PARAMS:
        return OperationError(ErrorCode.invalid_arguments, words, "Look at the parameters of the tool.")
    return OperationError(ErrorCode.tool_error, words, "Choose another way, or other arguments.", effects="unknown")
