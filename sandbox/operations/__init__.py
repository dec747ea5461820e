"""The operations of a sandbox as values: a typed request and a typed result each.

A request's docstring and field descriptions are what a model reads; ``OPERATIONS`` is the table from which tools, methods and the
wire are made. Paths may be relative (to the working folder of the sandbox) or absolute inside its roots.
"""

from __future__ import annotations

from typing import Any

from .base import Change, HostArguments, Request
from .commands import EndSession, Kill, Logs, OpenSession, Run, Sessions
from .files import Delete, Download, Edit, List, MakeDir, Move, Read, Search, Stat, Upload, Write
from .interaction import Resize, Screen, Send
from .pages import Browse
from .usage import Usage
from .waiting import Processes, WaitFor

__all__ = [
    "OPERATIONS", "REQUESTS", "Browse", "Change", "Delete", "Download", "Edit", "EndSession", "HostArguments", "Kill", "List",
    "Logs", "MakeDir", "Move", "OpenSession", "Processes", "Read", "Request", "Resize", "Run", "Screen", "Search", "Send",
    "Sessions", "Stat", "Upload", "Usage", "WaitFor", "Write", "schema_of",
]  # fmt: skip

REQUESTS: tuple[type[Request], ...] = (
    Read, Write, Edit, List, Search, MakeDir, Move, Delete, Run, Logs, Kill, EndSession, Send, Resize, Screen, WaitFor, Processes,
    Upload, Download, Browse, Usage, Stat, OpenSession, Sessions,
)  # fmt: skip
OPERATIONS: dict[str, type[Request]] = {r.operation: r for r in REQUESTS}


def schema_of(request: type[Request]) -> dict[str, Any]:
    """The JSON schema of a request's arguments, without titles: what a model is given as ``parameters``."""
    schema: dict[str, Any] = _without_titles(request.model_json_schema())
    schema.pop("description", None)
    # For callers in Python; a model does not lose its connection.
    for name in ("request_id", *request.host_only()):
        schema["properties"].pop(name, None)
    schema.setdefault("required", [])
    return schema


def _without_titles(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: _without_titles(v) for k, v in node.items() if not (k == "title" and isinstance(v, str))}
    return [_without_titles(v) for v in node] if isinstance(node, list) else node
