"""Listing folders, and the status of a path."""

from __future__ import annotations

import os
import stat
import time

from ..loop.context import Call
from ..protocol.faults import Fault
from ..users import find_name
from .roots import Roots, printable, readable_roots_of
from .tree_walk import DIRECTORY, Item, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COUNTED = 100_000  # entries counted beyond those that are returned
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
    path: str = call.args["path"]
    roots = readable_roots_of(call.place)
    link: os.stat_result | None = None
    target: bytes | None = None
    try:
        folder, name = roots.open_parent(path, follow=False)
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
        status = link
    else:
        status = os.fstat(fd)
        os.close(fd)
    return {
        "path": roots.display(path),
        "type": _kind(status.st_mode),
        "size_bytes": status.st_size,
        "mode": stat.S_IMODE(status.st_mode),
        "uid": status.st_uid,
        "gid": status.st_gid,
        "owner": find_name(status.st_uid),
        "mtime_seconds": status.st_mtime,
        "link_target": None if target is None else printable(target),
    }


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"
