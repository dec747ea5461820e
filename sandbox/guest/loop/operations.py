"""The one table of the operations that the guest carries out: what each takes, who carries it out, and what it does.

The host has a table of its own, ``sandbox/operations``, of those that are for callers. A handler in a worker is imported
when it is first asked for: a guest starts without them, and holds only what its sandbox uses.
"""

from __future__ import annotations

from ..protocol.faults import Fault
from . import arguments as a
from .arguments import maybe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .arguments import Check
    from .context import Call

    Handler = Callable[[Call], dict[str, Any] | tuple[dict[str, Any], bytes]]

# Who carries an operation out. The reactor: at once; later, when there is an answer; or as a command, whose input and output
# may be streamed. Or a worker, a thread that acts on files as the sandbox's user.
AT_ONCE, LATER, COMMAND, WORKER = "at once", "later", "command", "worker"


class Operation:
    """A row of the table. ``handler`` is "part.method" of ``Requests.parts`` in the reactor, "module:function" in a worker.

    ``required`` and ``optional`` are the checks of the arguments by name; others are left to the handler. ``check`` looks at all
    of them together. ``changed_paths`` names the arguments that are paths which it changes. ``fills_disk``: refused when the disk
    is full, and its answer tells when it nearly is. ``only_looks``: it leaves everything as it was, whatever becomes of its
    answer. ``is_work``: a sandbox in which it is asked for is not idle.
    """

    __slots__ = (
        "changed_paths",
        "check",
        "fills_disk",
        "handler",
        "is_work",
        "kind",
        "name",
        "only_looks",
        "optional",
        "required",
    )

    def __init__(
        self,
        name: str,
        kind: str,
        handler: str,
        required: dict[str, Check] | None = None,
        optional: dict[str, Check] | None = None,
        *,
        check: Callable[[dict[str, Any]], None] | None = None,
        changed_paths: tuple[str, ...] = (),
        fills_disk: bool = False,
        only_looks: bool = False,
        is_work: bool = True,
    ) -> None:
        self.name = name
        self.kind = kind
        self.handler = handler
        self.required = required or {}
        self.optional = optional or {}
        self.check = check
        self.changed_paths = changed_paths
        self.fills_disk = fills_disk
        self.only_looks = only_looks
        self.is_work = is_work

    def check_arguments(self, args: dict[str, Any]) -> None:
        """Raise Fault ``invalid_arguments`` if an argument is missing or cannot be what it is."""
        for name, check in self.required.items():
            if name not in args or not check(args[name]):
                a.refuse(self.name, name, args)
        for name, value in args.items():
            if name in self.optional and not self.optional[name](value):
                a.refuse(self.name, name, args)
        if self.check is not None:
            self.check(args)

    def in_worker(self) -> Handler:
        """Import the function that carries it out in a worker."""
        module, _, name = self.handler.partition(":")
        found: Handler = getattr(__import__(module, globals(), level=2, fromlist=[name]), name)
        return found


_ROWS = (
    # files
    Operation(
        "read",
        WORKER,
        "files.reading:read",
        {"path": a.text},
        {
            "start_line": maybe(a.count),
            "end_line": maybe(a.count),
            "offset": maybe(a.count),
            "max_bytes": maybe(a.count),
            "numbered": a.flag,
        },
        only_looks=True,
    ),
    Operation(
        "write",
        WORKER,
        "files.writing:write",
        {"path": a.text, "content": a.text},
        changed_paths=("path",),
        fills_disk=True,
    ),
    Operation(
        "edit",
        WORKER,
        "files.writing:edit",
        {"path": a.text, "old_text": a.text, "new_text": a.text},
        {"replace_all": a.flag},
        changed_paths=("path",),
        fills_disk=True,
    ),
    Operation(
        "list",
        WORKER,
        "files.listing:list_folder",
        {},
        {"path": a.text, "depth": a.length, "hidden": a.flag, "max_entries": a.count},
        only_looks=True,
    ),
    Operation("stat", WORKER, "files.listing:status_of", {"path": a.text}, only_looks=True),
    Operation(
        "list_details",
        WORKER,
        "files.listing:list_details",
        {"path": a.text, "depth": a.length, "max_entries": a.count},
        only_looks=True,
    ),
    Operation(
        "search",
        WORKER,
        "files.search:search",
        {"pattern": a.text},
        {
            "path": a.text,
            "glob": maybe(a.text),
            "literal": a.flag,
            "ignore_case": a.flag,
            "context_lines": a.count,
            "max_matches": a.count,
        },
        only_looks=True,
    ),
    Operation("make_dir", WORKER, "files.tree:make_dir", {"path": a.text}, changed_paths=("path",)),
    Operation(
        "move",
        WORKER,
        "files.tree:move",
        {"source": a.text, "target": a.text},
        {"overwrite": a.flag},
        changed_paths=("source", "target"),
    ),
    Operation("delete", WORKER, "files.tree:delete", {"path": a.text}, {"recursive": a.flag}, changed_paths=("path",)),
    Operation(
        "upload",
        WORKER,
        "files.transfer:upload",
        {"path": a.text},
        {"kind": a.transfer_kind, "mode": maybe(a.mode), "attributes": maybe(a.attributes)},
        changed_paths=("path",),
        fills_disk=True,
    ),
    Operation("download", WORKER, "files.transfer:download", {"path": a.text}, only_looks=True),
    # commands and sessions
    Operation(
        "run",
        COMMAND,
        "requests.run",
        {"keep_output_bytes": a.count, "timeout_seconds": maybe(a.seconds)},
        {
            "command": maybe(a.bytes_as_text),
            "argv": maybe(a.texts),
            "cwd": maybe(a.bytes_as_text),
            "env": maybe(a.variables),
            "stdin": maybe(a.stdin),
            "cpu_seconds": maybe(a.seconds),
            "background": a.flag,
            "session": maybe(a.text),
            "wait_seconds": maybe(a.seconds),
            "pty": a.flag,
            "rows": a.length,
            "cols": a.length,
            "stays_open": a.flag,
            "user": maybe(a.user),
            "needs_session": a.flag,
        },
        check=a.check_run,
    ),
    Operation(
        "logs",
        LATER,
        "terminals.logs",
        {"id": a.text, "offset": a.offset, "max_bytes": a.count, "follow": a.flag, "wait_seconds": a.seconds},
        {"tail_lines": maybe(a.count)},
        only_looks=True,
        is_work=False,
    ),
    Operation("kill", LATER, "processes.kill", {"id": a.text}, {"signal": maybe(a.signal_name), "user": maybe(a.user)}),
    Operation("open_session", AT_ONCE, "sessions.open_session", {"session": a.text}, {"user": maybe(a.user)}),
    Operation("end_session", AT_ONCE, "sessions.end_session", {"session": a.text}, {"user": maybe(a.user)}),
    Operation("sessions", AT_ONCE, "sessions.list_sessions", {}, {"user": maybe(a.user)}, only_looks=True),
    # terminals
    Operation(
        "send",
        LATER,
        "terminals.send",
        {"id": a.text, "text": a.bytes_as_text, "keys": a.texts, "eof": a.flag, "wait_seconds": a.seconds},
        {"application_keys": a.flag, "user": maybe(a.user)},
    ),
    Operation(
        "resize",
        LATER,
        "terminals.resize",
        {"id": a.text, "rows": a.length, "cols": a.length},
        {"user": maybe(a.user)},
        is_work=False,
    ),
    Operation(
        "screen",
        LATER,
        "terminals.screen",
        {"id": a.text, "offset": a.count, "max_bytes": a.count},
        only_looks=True,
        is_work=False,
    ),
    # waiting
    Operation(
        "wait_for",
        LATER,
        "terminals.wait_for",
        {
            "timeout_seconds": a.seconds,
            "id": maybe(a.text),
            "port": maybe(a.port),
            "host": maybe(a.text),
            "log": maybe(a.pattern),
            "literal": a.flag,
            "offset": a.offset,
            "file": maybe(a.text),
            "contains": maybe(a.bytes_as_text),
            "exit": a.flag,
        },
        check=a.check_wait,
        only_looks=True,
        is_work=False,
    ),
    Operation("processes", LATER, "terminals.processes", {"id": maybe(a.text)}, only_looks=True, is_work=False),
    # pages, usage
    Operation(
        "browse",
        WORKER,
        "pages.browse:browse",
        {"url": a.text},
        {"offset": a.count, "max_chars": a.count, "raw": a.flag, "browser": maybe(a.flag), "timeout_seconds": a.seconds},
        only_looks=True,
    ),
    Operation(
        "browse_interact",
        WORKER,
        "pages.full:interact",
        {"steps": a.steps},
        {"max_chars": a.count, "timeout_seconds": a.seconds},
        fills_disk=True,
    ),
    Operation(
        "screenshot",
        WORKER,
        "pages.full:screenshot",
        {},
        {"target": maybe(a.text), "full": a.flag, "path": maybe(a.text), "timeout_seconds": a.seconds},
        changed_paths=("path",),
        fills_disk=True,
    ),
    Operation("usage", AT_ONCE, "processes.usage", only_looks=True, is_work=False),
    # of the host itself: sandboxes that stood by, their end, pauses, and the state of files
    Operation("begin", AT_ONCE, "requests.begin", {"environ": a.variables, "limits": a.limits}),
    Operation("live_for", AT_ONCE, "requests.live_for", {"seconds": a.seconds}, is_work=False),
    Operation("resumed", AT_ONCE, "requests.resumed", {"seconds": a.seconds}),
    Operation("scan", WORKER, "state.scanning:scan", {"roots": a.roots}, {"sessions": a.flag}, only_looks=True),
    Operation("fetch", WORKER, "state.fetching:fetch", only_looks=True),
    Operation(
        "restore",
        WORKER,
        "state.restoring:restore",
        {"sizes": a.sizes},
        {"path": a.text, "sessions": maybe(a.sessions)},
        changed_paths=("path",),
        fills_disk=True,
    ),
    Operation("last_changes", WORKER, "state.scanning:last_changes", only_looks=True),
)
OPERATIONS = {row.name: row for row in _ROWS}


def operation_named(name: Any) -> Operation:
    """Return the row of that name. Raises Fault ``unknown_tool``."""
    row = OPERATIONS.get(name) if isinstance(name, str) else None
    if row is None:
        raise Fault("unknown_tool", name=str(name)[:100])
    return row


def check_arguments(name: Any, args: dict[str, Any]) -> None:
    """Raise Fault: ``unknown_tool`` for an operation that there is not, ``invalid_arguments`` as ``Operation.check_arguments``."""
    operation_named(name).check_arguments(args)
