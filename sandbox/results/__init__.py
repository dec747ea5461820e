"""What each operation answers: frozen values, the same fields in success and failure as far as they are known."""

from __future__ import annotations

from .base import Result
from .commands import (
    EndSessionResult,
    KillResult,
    LogsResult,
    OomVictim,
    OpenSessionResult,
    RunResult,
    SessionsResult,
    SessionState,
)
from .files import (
    Candidate,
    DeleteResult,
    DownloadResult,
    EditResult,
    Entry,
    FileType,
    ListResult,
    MakeDirResult,
    Match,
    MoveResult,
    ReadResult,
    SearchResult,
    StatResult,
    UploadResult,
    WriteResult,
)
from .interaction import ResizeResult, ScreenResult, SendResult
from .pages import BrowseResult, Link
from .processes import ListedCommand, Port, Process, ProcessesResult
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
from .usage import PlaceUsage, UsageResult
from .waiting import WaitForResult

__all__ = [
    "BrowseResult", "Candidate", "ChangedPath", "ChangesResult", "CheckpointResult", "CheckpointsResult",
    "DeleteResult", "DeletedCheckpointResult", "DownloadResult", "EditResult", "EndSessionResult", "Entry",
    "FileType", "ForkResult", "KillResult", "Link", "ListResult", "ListedCommand", "LogsResult", "MakeDirResult",
    "Match", "MoveResult", "OomVictim", "OpenSessionResult", "PatchResult", "PlaceUsage", "Port", "Process", "ProcessesResult",
    "ReadResult", "ResizeResult", "Result", "RollbackResult", "RunResult", "SavedCheckpointResult", "ScreenResult",
    "SearchResult", "SendResult",
    "SessionState", "SessionsResult", "StatResult", "UploadResult", "UsageResult", "WaitForResult", "WriteResult",
]  # fmt: skip
