"""Listing folders."""

from __future__ import annotations

import os
import stat
import time

from ..loop.context import Call
from .beneath import Roots, readable_roots_of, shown
from .walking import DIRECTORY, Item, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COUNTED = 100_000  # entries counted beyond those that are shown
SECONDS = 3.0  # after that the count stops where it is; ``truncated`` then says so


def list_folder(call: Call) -> dict[str, Any]:
    """The handler of ``list``: depth first, sorted by name, links shown and not followed."""
    args = call.args
    path: str = args.get("path", ".")
    hidden, depth, most = args.get("hidden", True), args.get("depth", 1), args.get("max_entries", 500)
    roots = readable_roots_of(call.place)
    top = roots.open(path, DIRECTORY & ~os.O_NOFOLLOW)
    base = path.encode("utf-8", "surrogateescape")
    entries: list[dict[str, Any]] = []
    total, more = 0, False
    passed: list[bytes] = []
    deadline = time.monotonic() + SECONDS
    items = walk(top, depth, passed.append, None if hidden else _is_visible)
    try:
        for item in items:
            total += 1
            if len(entries) < most:
                entries.append(_entry(roots, base, item))
            if total >= most + COUNTED or time.monotonic() > deadline:
                more = True
                break
    except OSError as error:
        raise roots.fault(error, path) from None
    finally:
        items.close()
    truncated = more or total > len(entries) or bool(passed)
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
        return shown(os.readlink(item.name, dir_fd=item.folder_fd))
    except OSError:  # no longer a link
        return None
