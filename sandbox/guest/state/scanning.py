"""Sending the host the state of every path in the workspace and the home, and what runs meanwhile."""

from __future__ import annotations

import os
import stat
import time

from ..files.roots import printable
from ..files.tree_walk import DIRECTORY, Item, walk
from ..loop.context import StateCall
from ..protocol.faults import Fault
from ..protocol.records import ENTRY, FILE, FOLDER, HOME, LINK, MOST_PATH_BYTES, SPECIAL, UNREAD, WORKSPACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ENTRIES = 500_000
PIECE = 1 << 17
NAMED = 20
LONGEST_PATH = 0xFFFF  # the limit of an entry's record


def scan(call: StateCall) -> dict[str, Any]:
    """Handle ``scan``: stream an entry for each path below the requested roots, folders before their contents."""
    clock = time.time_ns()
    scanning = _Scanning(call)
    for root in call.args["roots"]:
        scanning.scan_root(root)
    scanning.flush()
    sessions: dict[str, Any] = {}
    if call.args.get("sessions"):
        call.hand_over(lambda: sessions.update(call.processes.sessions.states()))
    return {
        "clock_ns": clock,
        "entries": scanning.count,
        "unread": scanning.unread_names,
        "unread_count": len(scanning.unread),
        "running": running_commands(call),
        "sessions": sessions,
    }


def last_changes(call: StateCall) -> dict[str, Any]:
    """Handle ``last_changes``: return what the last command changed whose changes were looked for."""
    found: dict[str, Any] = call.processes.changes.last
    return found


def running_commands(call: StateCall) -> list[str]:
    """Return the ids of the commands that have running processes."""
    return [command.id for command in list(call.processes.commands.values()) if not command.tree_empty]


def root_path(call: StateCall, root: int) -> bytes:
    """Return the path of a root by its number. Raises Fault."""
    if root not in (WORKSPACE, HOME):
        raise Fault("invalid_arguments", problem=f"there is no root {root}")
    return call.place.workspace if root == WORKSPACE else call.place.home


class _Scanning:
    def __init__(self, call: StateCall) -> None:
        self._call = call
        self._piece = bytearray()
        self.count = self._path_bytes = 0
        self.unread: set[bytes] = set()
        self.unread_names: list[str] = []

    def scan_root(self, root: int) -> None:
        top = os.open(root_path(self._call, root), DIRECTORY)
        status = os.fstat(top)
        self._piece += _pack_entry(root, FOLDER, status, b"", b"")
        unread: dict[bytes, None] = {}
        items = walk(top, on_skip=lambda path: unread.setdefault(_shortened(path)))
        try:
            for item in items:
                self.count += 1
                if self.count > ENTRIES:
                    raise Fault("too_many_files", limit=ENTRIES)
                if len(item.path) > LONGEST_PATH:  # no record can hold it, only the path of a folder above
                    unread.setdefault(_shortened(item.path))
                else:
                    self._add(root, item)
        finally:
            items.close()
        for path in unread:  # known only after the folder's own entry was sent
            self._add_unread(root, path)

    def _add_unread(self, root: int, path: bytes) -> None:
        self.unread.add(path)
        self._count_path_bytes(len(path))
        if len(self.unread_names) < NAMED:
            self.unread_names.append(printable(path))
        self._piece += ENTRY.pack(root, UNREAD, 0, 0, 0, 0, 0, 0, 0, 0, 0, len(path), 0) + path

    def _add(self, root: int, item: Item) -> None:
        status, mode, target = item.status, item.status.st_mode, b""
        kind = FILE if stat.S_ISREG(mode) else FOLDER if stat.S_ISDIR(mode) else SPECIAL
        if stat.S_ISLNK(mode):
            try:
                kind, target = LINK, os.readlink(item.name, dir_fd=item.folder_fd)
            except OSError:  # replaced this very moment
                kind = SPECIAL
        self._count_path_bytes(len(item.path) + len(target))
        self._piece += _pack_entry(root, kind, status, item.path, target)
        if len(self._piece) > PIECE:
            self.flush()

    def _count_path_bytes(self, size: int) -> None:
        self._path_bytes += size
        if self._path_bytes > MOST_PATH_BYTES:
            raise Fault("too_many_files", path_bytes=MOST_PATH_BYTES)

    def flush(self) -> None:
        """Send the collected entries."""
        if self._piece:
            self._call.send(bytes(self._piece))
            self._piece.clear()


def _shortened(path: bytes) -> bytes:
    """Return the path, or the path of the deepest folder above it that fits a record."""
    if len(path) <= LONGEST_PATH:
        return path
    return path[: path.rindex(b"/", 0, LONGEST_PATH + 1)]


def _pack_entry(root: int, kind: bytes, status: os.stat_result, path: bytes, target: bytes) -> bytes:
    head = ENTRY.pack(
        root,
        kind,
        stat.S_IMODE(status.st_mode),
        status.st_uid,
        status.st_gid,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_dev,
        status.st_ino,
        status.st_nlink,
        len(path),
        len(target),
    )
    return head + path + target
