"""What is in the workspace and the home, path by path, and what runs meanwhile. For the host, which compares and keeps it."""

from __future__ import annotations

import os
import stat
import time

from ..files.beneath import shown
from ..files.walking import DIRECTORY, Item, walk
from ..loop.context import StateCall
from ..protocol.faults import Fault
from ..protocol.records import ENTRY, FILE, FOLDER, HOME, LINK, MOST_PATH_BYTES, SPECIAL, UNREAD, WORKSPACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ENTRIES = 500_000
PIECE = 1 << 17
NAMED = 20
LONGEST_PATH = 0xFFFF  # what the record of an entry has room for


def scan(call: StateCall) -> dict[str, Any]:
    """The handler of ``scan``: streams an entry for each path below the roots asked for, folders before what is in them."""
    clock = time.time_ns()
    scanning = _Scanning(call)
    for root in call.args["roots"]:
        scanning.root(root)
    scanning.finish()
    sessions: dict[str, Any] = {}
    if call.args.get("sessions"):
        call.hand_over(lambda: sessions.update(_sessions(call)))
    return {
        "clock_ns": clock,
        "entries": scanning.count,
        "unread": scanning.unread_names,
        "unread_count": len(scanning.unread),
        "running": running(call),
        "sessions": sessions,
    }


def last_changes(call: StateCall) -> dict[str, Any]:
    """The handler of ``last_changes``: what the last command that was looked after changed."""
    found: dict[str, Any] = call.processes.changes.last
    return found


def running(call: StateCall) -> list[str]:
    """The ids of the commands of which anything runs."""
    return [command.id for command in list(call.processes.commands.values()) if not command.tree_empty]


def root_path(call: StateCall, root: int) -> bytes:
    """The folder that a root's number stands for. Raises Fault."""
    if root not in (WORKSPACE, HOME):
        raise Fault("invalid_arguments", problem=f"there is no root {root}")
    return call.place.workspace if root == WORKSPACE else call.place.home


def _sessions(call: StateCall) -> dict[str, Any]:
    return {
        name: {"cwd": s.cwd, "env": s.env, "functions": s.functions, "variables": s.variables}
        for name, s in call.processes.sessions.items()
    }


class _Scanning:
    def __init__(self, call: StateCall) -> None:
        self._call = call
        self._piece = bytearray()
        self.count = self._path_bytes = 0
        self.unread: set[bytes] = set()
        self.unread_names: list[str] = []

    def root(self, root: int) -> None:
        top = os.open(root_path(self._call, root), DIRECTORY)
        status = os.fstat(top)
        self._piece += _entry(root, FOLDER, status, b"", b"")
        late: dict[bytes, None] = {}
        items = walk(top, passed_over=lambda path: late.setdefault(_fitting(path)))
        try:
            for item in items:
                self.count += 1
                if self.count > ENTRIES:
                    raise Fault("too_many_files", limit=ENTRIES)
                if len(item.path) > LONGEST_PATH:  # nothing can be said of it but where it is
                    late.setdefault(_fitting(item.path))
                else:
                    self._add(root, item)
        finally:
            items.close()
        for path in late:  # known only after the folder's own entry went out
            self._unread(root, path)

    def _unread(self, root: int, path: bytes) -> None:
        self.unread.add(path)
        self._more(len(path))
        if len(self.unread_names) < NAMED:
            self.unread_names.append(shown(path))
        self._piece += ENTRY.pack(root, UNREAD, 0, 0, 0, 0, 0, 0, 0, 0, 0, len(path), 0) + path

    def _add(self, root: int, item: Item) -> None:
        status, mode, target = item.status, item.status.st_mode, b""
        kind = FILE if stat.S_ISREG(mode) else FOLDER if stat.S_ISDIR(mode) else SPECIAL
        if stat.S_ISLNK(mode):
            try:
                kind, target = LINK, os.readlink(item.name, dir_fd=item.folder_fd)
            except OSError:  # exchanged this very moment
                kind = SPECIAL
        self._more(len(item.path) + len(target))
        self._piece += _entry(root, kind, status, item.path, target)
        if len(self._piece) > PIECE:
            self.finish()

    def _more(self, size: int) -> None:
        self._path_bytes += size
        if self._path_bytes > MOST_PATH_BYTES:
            raise Fault("too_many_files", path_bytes=MOST_PATH_BYTES)

    def finish(self) -> None:
        """Send what is collected."""
        if self._piece:
            self._call.send(bytes(self._piece))
            self._piece.clear()


def _fitting(path: bytes) -> bytes:
    """The path, or the longest folder above it that a record has room for."""
    if len(path) <= LONGEST_PATH:
        return path
    return path[: path.rindex(b"/", 0, LONGEST_PATH + 1)]


def _entry(root: int, kind: bytes, status: os.stat_result, path: bytes, target: bytes) -> bytes:
    head = ENTRY.pack(
        root, kind, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_size, status.st_mtime_ns,
        status.st_ctime_ns, status.st_dev, status.st_ino, status.st_nlink, len(path), len(target),
    )  # fmt: skip
    return head + path + target
