"""The operations of a sandbox: each a typed request and a typed result, declared where they stand, one file per family.

A family loads when the first of its names is used: pydantic takes 60 ms of a processor to load, and all the types as long again,
which is time that a sandbox needs to start (see ``load``).

A request's docstring and field descriptions are what a model reads; ``OPERATIONS`` is the table from which tools, methods and the
wire are made (``table``). Paths may be relative (to the working folder of the sandbox) or absolute inside its roots.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import Change, HostArguments, Request
    from .commands import Kill, KillResult, Logs, LogsResult, OomVictim, Run, RunResult
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
        ListDetails,
        ListDetailsResult,
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
    from .pages import (
        Browse,
        BrowseInteract,
        BrowseResult,
        ConsoleMessage,
        FailedRequest,
        InteractResult,
        Link,
        PageDialog,
        PageStep,
        PageTab,
        Screenshot,
        ScreenshotResult,
        StepResult,
    )
    from .result import Result
    from .sessions import (
        EndSession,
        EndSessionResult,
        OpenSession,
        OpenSessionResult,
        Sessions,
        SessionsResult,
        SessionState,
    )
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
    from .table import OPERATIONS, operation, schema_of
    from .terminals import Resize, ResizeResult, Screen, ScreenResult, Send, SendResult
    from .usage import PlaceUsage, Usage, UsageResult
    from .waiting import ListedCommand, Port, Process, Processes, ProcessesResult, WaitFor, WaitForResult

__all__ = [
    "OPERATIONS",
    "Browse",
    "BrowseInteract",
    "BrowseResult",
    "Candidate",
    "Change",
    "ChangedPath",
    "ChangesResult",
    "CheckpointResult",
    "CheckpointsResult",
    "ConsoleMessage",
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
    "FailedRequest",
    "FileType",
    "ForkResult",
    "HostArguments",
    "InteractResult",
    "Kill",
    "KillResult",
    "Link",
    "List",
    "ListDetails",
    "ListDetailsResult",
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
    "PageDialog",
    "PageStep",
    "PageTab",
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
    "Screenshot",
    "ScreenshotResult",
    "Search",
    "SearchResult",
    "Send",
    "SendResult",
    "SessionState",
    "Sessions",
    "SessionsResult",
    "Stat",
    "StatResult",
    "StepResult",
    "Upload",
    "UploadResult",
    "Usage",
    "UsageResult",
    "WaitFor",
    "WaitForResult",
    "Write",
    "WriteResult",
    "operation",
    "schema_of",
]

# In the order in which models are offered them.
_FAMILIES = ("files", "commands", "sessions", "terminals", "waiting", "pages", "usage")
# In the order in which a name is looked for: most programs run commands.
_MODULES = ("table", "base", "result", "commands", "files", "sessions", "terminals", "waiting", "pages", "usage", "state")


def load() -> None:
    """Load every operation; does nothing when they are loaded. May be called by several threads at once."""
    if is_loaded():
        return
    from . import table

    modules = [import_module(f".{name}", __name__) for name in _MODULES]
    places = {f"{__name__}.{family}": place for place, family in enumerate(_FAMILIES)}
    in_order = sorted(table.OPERATIONS.items(), key=lambda entry: places[entry[1].__module__])
    for name in __all__:
        if name != "OPERATIONS":
            globals()[name] = next(getattr(module, name) for module in modules if hasattr(module, name))
    globals()["OPERATIONS"] = dict(in_order)


def is_loaded() -> bool:
    """Return whether every operation is loaded."""
    return "OPERATIONS" in globals()  # the last of the names


def find(name: str) -> type[Request] | None:
    """Return the request of the operation ``name``, or None if it does not exist. Loads only the families that it needs."""
    if is_loaded():
        loaded: dict[str, type[Request]] = globals()["OPERATIONS"]
        return loaded.get(name)
    from . import commands, table  # noqa: F401 - the family that most programs begin with

    if name not in table.OPERATIONS:
        load()
    found = table.OPERATIONS.get(name)
    if found is not None:
        import_module(found.__module__)  # another thread may be loading it: its class is there before all that it uses
    return found


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "OPERATIONS":
        load()
        return globals()[name]
    module = next(module for each in _MODULES if hasattr(module := import_module(f".{each}", __name__), name))
    return globals().setdefault(name, getattr(module, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
