"""Listing folders, and the status of a path."""

from __future__ import annotations

import os
import stat
import time

from ..loop.context import Call
from ..protocol.faults import Fault
from ..users import find_group_name, find_name
from .roots import Roots, printable, readable_roots_of
from .tree_walk import DIRECTORY, Item, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COUNTED = 100_000  # entries counted beyond those that are returned
# Extended attributes of one file: how many, and the bytes of their names and values.
NAMESPACE, MOST_ATTRIBUTES, MOST_ATTRIBUTE_BYTES = "user.", 64, 16 << 10
SECONDS = 3.0  # after that the counting stops, and ``truncated`` is set


def list_folder(call: Call) -> dict[str, Any]:
    """Handle ``list``: depth first, sorted by name; links are listed, not followed. Raises Fault."""
    args = call.args
    path: str = args.get("path", ".")
    hidden, depth, most = args.get("hidden", True), args.get("depth", 1), args.get("max_entries", 500)
    roots = readable_roots_of(call.place)
    top = roots.open(path, DIRECTORY & ~os.O_NOFOLLOW)
    base = path.encode("utf-8", "surrogateescape")
    entries: list[dict[str, Any]] = []
    total, more = 0, False
    skipped: list[bytes] = []
    deadline = time.monotonic() + SECONDS
    items = walk(top, depth, skipped.append, None if hidden else _is_visible)
    try:
        for item in items:
            total += 1
            if len(entries) < most:
                entries.append(_entry(roots, base, item))
            if total >= most + COUNTED or time.monotonic() > deadline:
                more = True
                break
    except OSError as error:
        raise roots.fault_for(error, path) from None
    finally:
        items.close()
    truncated = more or total > len(entries) or bool(skipped)
    return {"path": roots.display(path), "entries": entries, "total_entries": total, "truncated": truncated}


def _is_visible(name: bytes) -> bool:
    return not name.startswith(b".")


def _entry(roots: Roots, base: bytes, item: Item) -> dict[str, Any]:
    mode = item.status.st_mode
    entry: dict[str, Any] = {"path": roots.display(os.path.join(base, item.path)), "type": "other"}
    if stat.S_ISDIR(mode):
        entry["type"] = "directory"
    elif stat.S_ISREG(mode):
        entry |= {"type": "file", "size_bytes": item.status.st_size}
    elif stat.S_ISLNK(mode):
        entry |= {"type": "symlink", "target": _target(item)}
    return entry


def _target(item: Item) -> str | None:
    try:
        return printable(os.readlink(item.name, dir_fd=item.folder_fd))
    except OSError:  # no longer a link
        return None


def status_of(call: Call) -> dict[str, Any]:
    """Handle ``stat``: follow links, but describe a link itself that leads nowhere or outside the roots. Raises Fault."""
    return _status(readable_roots_of(call.place), call.args["path"], _Names())


def list_details(call: Call) -> dict[str, Any]:
    """Handle ``list_details``: depth first, sorted by name, with the status of each entry as ``stat`` has it. Raises Fault."""
    path: str = call.args["path"]
    roots, names = readable_roots_of(call.place), _Names()
    top = roots.open(path, DIRECTORY & ~os.O_NOFOLLOW)
    entries: list[dict[str, Any]] = []
    skipped: list[bytes] = []
    more = False
    items = walk(top, call.args["depth"], skipped.append)
    try:
        for item in items:
            if len(entries) == call.args["max_entries"]:
                more = True
                break
            try:
                entries.append(_status(roots, os.path.join(path, os.fsdecode(item.path)), names))
            except Fault:  # it is gone
                continue
    except OSError as error:
        raise roots.fault_for(error, path) from None
    finally:
        items.close()
    return {"path": roots.display(path), "entries": entries, "truncated": more or bool(skipped)}


class _Names:
    """The names of users and groups, each looked up once."""

    def __init__(self) -> None:
        self._users: dict[int, str | None] = {}
        self._groups: dict[int, str | None] = {}

    def of(self, status: os.stat_result) -> tuple[str | None, str | None]:
        """Return the names of the owner and of the group."""
        uid, gid = status.st_uid, status.st_gid
        if uid not in self._users:
            self._users[uid] = find_name(uid)
        if gid not in self._groups:
            self._groups[gid] = find_group_name(gid)
        return self._users[uid], self._groups[gid]


def _status(roots: Roots, path: str, names: _Names) -> dict[str, Any]:
    link: os.stat_result | None = None
    target: bytes | None = None
    try:
        folder, name = roots.open_parent(path)
    except Fault as fault:
        if fault.code != "path_invalid":  # a root, or a path that no file can have
            raise
    else:
        try:
            link = os.stat(name, dir_fd=folder, follow_symlinks=False)
            target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(link.st_mode) else None
        except OSError as error:
            raise roots.fault_for(error, path) from None
        finally:
            os.close(folder)
    try:
        fd = roots.open(path, os.O_PATH)
    except Fault:
        if link is None or target is None:
            raise
        status, attributes = link, {}
    else:
        status, attributes = os.fstat(fd), _attributes(fd)
        os.close(fd)
    owner, group = names.of(status)
    return {
        "path": roots.display(path),
        "type": _kind(status.st_mode),
        "size_bytes": status.st_size,
        "mode": stat.S_IMODE(status.st_mode),
        "uid": status.st_uid,
        "gid": status.st_gid,
        "owner": owner,
        "group": group,
        "mtime_seconds": status.st_mtime,
        "link_target": None if target is None else printable(target),
        "attributes": attributes,
    }


def _attributes(fd: int) -> dict[str, str]:
    """Return the extended attributes of an open file in the namespace ``user``, as texts; those beyond the bounds are left out."""
    path = f"/proc/self/fd/{fd}"  # the descriptor is open with O_PATH, which the calls do not take
    found: dict[str, str] = {}
    size = 0
    try:
        for name in os.listxattr(path):
            if not name.startswith(NAMESPACE):
                continue
            value = os.getxattr(path, name)
            size += len(name) + len(value)
            if len(found) == MOST_ATTRIBUTES or size > MOST_ATTRIBUTE_BYTES:
                break
            found[os.fsencode(name).decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    except OSError:  # the file system has none, or they were changed meanwhile
        return found
    return found


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"
