"""Records that carry the states and contents of files between guest and host.

A content is the list of the parts of a file that are not holes: (offset, length) and that many bytes each, then (file size, 0).
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WORKSPACE, HOME = 0, 1
FILE, FOLDER, LINK, SPECIAL, UNREAD = b"f", b"d", b"l", b"s", b"u"

# The state of one path: root, kind, mode, uid, gid, size, mtime and ctime in ns, device, inode, number of names, then the lengths
# of the path and of a link's target, which follow.
ENTRY = struct.Struct("!BcHIIQqqQQIHH")
# A path to be fetched: its root and its length.
WANTED = struct.Struct("!BH")
# The outcome of fetching it: its number, GOT or GONE, and its state when it was opened (size, mtime, ctime, device, inode).
FETCHED = struct.Struct("!IBQqqQQ")
GOT, GONE = 0, 1
PART = struct.Struct("!QQ")
# After a content: whether the file changed while it was read.
CHANGED = struct.Struct("!?")
# A step of a restore: root, kind, mode, uid, gid, mtime, and the lengths of the path and of the target, which follow.
STEP = struct.Struct("!BcHIIqHH")
REMOVE, MAKE, PUT, POINT, SAME, ATTRIBUTES, END = b"D", b"M", b"F", b"L", b"H", b"A", b"E"
# The sum of all paths and targets in one scan: the host holds them several times over.
MOST_PATH_BYTES = 64 << 20
MOST_SESSIONS, MOST_STATE_CHARS = 4096, 8 << 20


def check_sessions(value: object) -> dict[str, Any]:
    """Return the states of sessions by name. Raises ValueError for anything else: the value comes from a file or a guest."""
    if isinstance(value, dict) and len(value) <= MOST_SESSIONS and all(map(_is_state, value.keys(), value.values())):
        return value
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
