"""The operations of a sandbox as values: a typed request and a typed result each, one file per family.

A request's docstring and field descriptions are what a model reads; ``OPERATIONS`` is the table from which tools, methods and the
wire are made. Paths may be relative (to the working folder of the sandbox) or absolute inside its roots.
"""

from __future__ import annotations

from typing import Any

from sandbox.envelope import Result

from .base import Change, HostArguments, Request
from .commands import (
    EndSession,
    EndSessionResult,
    Kill,
    KillResult,
    Logs,
    LogsResult,
    OomVictim,
    OpenSession,
    OpenSessionResult,
    Run,
    RunResult,
    Sessions,
    SessionsResult,
    SessionState,
)
from .files import (
    Candidate,
    Delete,
    DeleteResult,
    Download,
    DownloadResult,
    Edit,
    EditResult,
    Entry,
    FileType,
    List,
    ListResult,
    MakeDir,
    MakeDirResult,
    Match,
    Move,
    MoveResult,
    Read,
    ReadResult,
    Search,
    SearchResult,
    Stat,
    StatResult,
    Upload,
    UploadResult,
    Write,
    WriteResult,
)
from .pages import Browse, BrowseResult, Link
from .state import (
    ChangedPath,
    ChangesResult,
    CheckpointResult,
    CheckpointsResult,
    DeletedCheckpointResult,
    ForkResult,
    PatchResult,
    RollbackResult,
    SavedCheckpointResult,
)
from .terminals import Resize, ResizeResult, Screen, ScreenResult, Send, SendResult
from .usage import PlaceUsage, Usage, UsageResult
from .waiting import ListedCommand, Port, Process, Processes, ProcessesResult, WaitFor, WaitForResult

__all__ = [
    "OPERATIONS",
    "REQUESTS",
    "Browse",
    "BrowseResult",
    "Candidate",
    "Change",
    "ChangedPath",
    "ChangesResult",
    "CheckpointResult",
    "CheckpointsResult",
    "Delete",
    "DeleteResult",
    "DeletedCheckpointResult",
    "Download",
    "DownloadResult",
    "Edit",
    "EditResult",
    "EndSession",
    "EndSessionResult",
    "Entry",
    "FileType",
    "ForkResult",
    "HostArguments",
    "Kill",
    "KillResult",
    "Link",
    "List",
    "ListResult",
    "ListedCommand",
    "Logs",
    "LogsResult",
    "MakeDir",
    "MakeDirResult",
    "Match",
    "Move",
    "MoveResult",
    "OomVictim",
    "OpenSession",
    "OpenSessionResult",
    "PatchResult",
    "PlaceUsage",
    "Port",
    "Process",
    "Processes",
    "ProcessesResult",
    "Read",
    "ReadResult",
    "Request",
    "Resize",
    "ResizeResult",
    "Result",
    "RollbackResult",
    "Run",
    "RunResult",
    "SavedCheckpointResult",
    "Screen",
    "ScreenResult",
    "Search",
    "SearchResult",
    "Send",
    "SendResult",
    "SessionState",
    "Sessions",
    "SessionsResult",
    "Stat",
    "StatResult",
    "Upload",
    "UploadResult",
    "Usage",
    "UsageResult",
    "WaitFor",
    "WaitForResult",
    "Write",
    "WriteResult",
    "schema_of",
]

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
