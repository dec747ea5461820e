"""What a server sends, checked and rebuilt before the SDK's session sees it.

The session receives only answers to its own requests, made of fields that were validated here. One bad tool or content block would
otherwise make the SDK reject the whole answer, and notifications would each start a task without a limit on their number.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCRequest, JSONRPCResponse

from sandbox.errors import OperationError

from .messages import MAX_WORDS, METHOD_NOT_FOUND, Message, is_answer, nonsense
from .results import clean_content
from .tools import Tool, tool_of

MAX_TOOLS = 200
# Of all tools of a server together, with their schemas: each prompt has them.
MAX_DECLARED_CHARS = 400_000
MAX_VERSIONS = 50
# What a session reads from, and writes to.
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
# Fields that version 2026-07-28 requires; older versions ignore them.
_CACHE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


class Inbound:
    """Checks the messages of one connection. ``changed`` is set when the server says that its tools changed.

    ``problems`` says which tools of the last listing were left out, and why. Methods may be called from any thread.
    """

    def __init__(self) -> None:
        self.changed = threading.Event()
        self.problems: list[str] = []
        self._listed: set[str] = set()
        self._chars = 0
        self._methods: dict[str | int, str] = {}

    def begin_listing(self) -> None:
        """Forget the previous listing of tools."""
        self.changed.clear()
        self.problems, self._listed, self._chars = [], set(), 0

    def report(self, problem: str) -> None:
        """Add a problem; there are at most as many as tools."""
        self.problems = [*self.problems, problem][:MAX_TOOLS]

    def expect(self, message: JSONRPCMessage) -> None:
        """Note a message of the session: an answer to its request is accepted, once."""
        if isinstance(message, JSONRPCRequest):
            self._methods[message.id] = message.method

    def forget(self, ident: Any) -> None:
        """Do not accept an answer to the request ``ident`` any more."""
        self._methods.pop(ident, None)

    def reply_to(self, message: Message) -> Message | None:
        """Return the reply to a request of the server: it may ask whether we are there, and nothing else."""
        if "method" not in message or message.get("id") is None:
            return None
        pong: Message = {"jsonrpc": "2.0", "id": message["id"]}
        if message["method"] == "ping":
            return {**pong, "result": {}}
        words = f"This client does not support {str(message['method'])[:100]}."
        return {**pong, "error": {"code": METHOD_NOT_FOUND, "message": words}}

    def accept(self, message: Message) -> SessionMessage | None:
        """Return the message for the session, or None for one that is not an answer to a request of ours."""
        if message.get("method") == "notifications/tools/list_changed":
            self.changed.set()
        ident = message.get("id")
        if not is_answer(message) or isinstance(ident, bool) or not isinstance(ident, int | str):
            return None
        method = self._methods.pop(ident, None)
        if method is None:
            return None
        if "error" in message:
            return _error(ident, message["error"])
        try:
            result = self._clean(method, message["result"])
        except OperationError as fault:
            return failed(ident, fault)
        return SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=ident, result=result))

    def _clean(self, method: str, result: Any) -> dict[str, Any]:
        """Rebuild a result from its valid fields. Raises OperationError."""
        if not isinstance(result, dict):
            raise nonsense(f"an answer to {method} that is not an object")
        if method == "initialize":
            # Its name and instructions are not used, and what it can do is seen by its tools.
            version = str(result.get("protocolVersion"))[:40]
            return {"protocolVersion": version, "capabilities": {}, "serverInfo": {"name": "", "version": ""}}
        if method == "server/discover":
            versions = result.get("supportedVersions")
            named = [str(each)[:40] for each in versions[:MAX_VERSIONS]] if isinstance(versions, list) else []
            return {"supportedVersions": named, "capabilities": {}, **_CACHE}
        if method == "tools/list":
            return {**self._clean_listing(result), **_CACHE}
        if method == "tools/call":
            return _clean_call(result)
        return result

    def _clean_listing(self, result: Mapping[str, Any]) -> dict[str, Any]:
        listed = result.get("tools")
        tools = [tool for each in (listed if isinstance(listed, list) else ()) if (tool := self._tool(each))]
        page: dict[str, Any] = {
            "tools": [
                {"name": tool.name, "description": tool.description, "inputSchema": dict(tool.parameters)}
                for tool in tools
            ]
        }
        cursor = result.get("nextCursor")
        if isinstance(cursor, str) and 0 < len(cursor) <= MAX_WORDS:
            page["nextCursor"] = cursor
        return page

    def _tool(self, declared: Any) -> Tool | None:
        try:
            tool = tool_of(declared)
        except ValueError as error:
            self.report(str(error))
            return None
        chars = len(tool.description) + len(json.dumps(tool.parameters))
        if tool.name in self._listed or len(self._listed) >= MAX_TOOLS or self._chars + chars > MAX_DECLARED_CHARS:
            self.report(f"{tool.name!r} is left out")
            return None
        self._listed.add(tool.name)
        self._chars += chars
        return tool


def failed(ident: str | int, fault: OperationError) -> SessionMessage:
    """Return an answer that makes the session fail with ``fault``. No server can send one: a fault is not JSON."""
    return SessionMessage(
        JSONRPCError(jsonrpc="2.0", id=ident, error=ErrorData(code=INTERNAL_ERROR, message=fault.message, data=fault))
    )


def _error(ident: str | int, error: Any) -> SessionMessage:
    fields = error if isinstance(error, dict) else {}
    code = fields.get("code")
    is_code = isinstance(code, int) and not isinstance(code, bool)
    data = fields.get("data")
    supported = data.get("supported") if isinstance(data, dict) else None
    versions = [str(each)[:40] for each in supported[:MAX_VERSIONS]] if isinstance(supported, list) else None
    cleaned = ErrorData(
        code=code if is_code and isinstance(code, int) else 0,
        message=str(fields.get("message", error))[:MAX_WORDS],
        data=None if versions is None else {"supported": versions, "requested": ""},
    )
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=ident, error=cleaned))


def _clean_call(result: Mapping[str, Any]) -> dict[str, Any]:
    if result.get("resultType", "complete") != "complete":
        raise nonsense(
            f"{str(result['resultType'])[:40]!r} in place of a result: it asks for something that this client does not offer"
        )
    cleaned: dict[str, Any] = {
        "content": clean_content(result.get("content")),
        "isError": result.get("isError") is True,
        "resultType": "complete",
    }
    if isinstance(result.get("structuredContent"), dict):
        cleaned["structuredContent"] = result["structuredContent"]
    return cleaned
