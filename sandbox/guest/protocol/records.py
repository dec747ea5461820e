"""The records in which the states and contents of files travel between guest and host; the host imports this module.

A content is a list of the parts of a file that are no holes: (offset, length) and that many bytes each, then (size of the file, 0).
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WORKSPACE, HOME = 0, 1
FILE, FOLDER, LINK, SPECIAL, UNREAD = b"f", b"d", b"l", b"s", b"u"

# What is known of one path: root, kind, mode, uid, gid, size, mtime and ctime in ns, device, inode, names, then the lengths of the
# path and of a link's target, which follow.
ENTRY = struct.Struct("!BcHIIQqqQQIHH")
# A path to be fetched: its root and its length.
WANTED = struct.Struct("!BH")
# What comes of it: its number, how it went, and what it was when it was opened (size, mtime, ctime, device, inode).
FETCHED = struct.Struct("!IBQqqQQ")
GOT, GONE = 0, 1
PART = struct.Struct("!QQ")
# After its content: whether it changed while it was read.
CHANGED = struct.Struct("!?")
# What to do to a path: root, kind, mode, uid, gid, mtime, and the lengths of the path and of what follows it.
STEP = struct.Struct("!BcHIIqHH")
REMOVE, MAKE, PUT, POINT, SAME, ATTRIBUTES, END = b"D", b"M", b"F", b"L", b"H", b"A", b"E"
# Of all paths and targets in one scan: the host holds them several times over.
MOST_PATH_BYTES = 64 << 20
MOST_SESSIONS, MOST_STATE_CHARS = 4096, 8 << 20


def sessions_of(said: object) -> dict[str, Any]:
    """The states of sessions by name, as they were given; a file or a guest may say anything. Raises ValueError."""
    if isinstance(said, dict) and len(said) <= MOST_SESSIONS and all(map(_is_state, said.keys(), said.values())):
        return said
    raise ValueError("no sessions")


def _is_state(name: object, state: object) -> bool:
    if not isinstance(name, str) or not isinstance(state, dict):
        return False
    tables = [state.get("env"), state.get("variables")]
    texts: list[Any] = [state.get("cwd"), state.get("functions")]
    for table in tables:
        if not isinstance(table, dict):
            return False
        texts += [*table.keys(), *table.values()]
    return all(isinstance(text, str) for text in texts) and sum(map(len, texts)) <= MOST_STATE_CHARS
