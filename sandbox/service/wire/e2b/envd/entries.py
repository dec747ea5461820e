"""Files and folders as envd describes them."""

from __future__ import annotations

import posixpath
import stat
from datetime import UTC, datetime
from typing import Any

from sandbox.operations import StatResult
from sandbox.service.wire.e2b.errors import unwrapped

from .access import Session

# Metadata of clients is kept in extended attributes.
METADATA = "user.e2b."
_TYPES = {"file": "FILE_TYPE_FILE", "directory": "FILE_TYPE_DIRECTORY", "symlink": "FILE_TYPE_SYMLINK"}
_KINDS = {"file": stat.S_IFREG, "directory": stat.S_IFDIR, "symlink": stat.S_IFLNK, "other": 0}


async def entry_at(session: Session, path: str) -> dict[str, Any]:
    """Return the description of a path. Raises WireError, SandboxError."""
    environment = await session.live.ready()
    return entry_of(path, unwrapped(await environment.execute("stat", {"path": path}), session.sandbox))


def entry_of(path: str, found: StatResult) -> dict[str, Any]:
    """Return the description of a path; that of a link is of what it leads to, and says so."""
    data: dict[str, Any] = {
        "name": posixpath.basename(path) or "/",
        "path": path,
        "size": str(found.size_bytes),
        "mode": found.mode & 0o777,
        "permissions": stat.filemode(_KINDS[found.type] | found.mode & 0o777),
        "owner": found.owner or str(found.uid),
        "group": found.group or str(found.gid),
        "modifiedTime": datetime.fromtimestamp(found.mtime_seconds, UTC).isoformat().replace("+00:00", "Z"),
    }
    if found.type in _TYPES:
        data["type"] = _TYPES[found.type]
    if found.link_target is not None:
        data["symlinkTarget"] = posixpath.normpath(posixpath.join(posixpath.dirname(path), found.link_target))
        data["isSymlink"] = True
    metadata = {name.removeprefix(METADATA): value for name, value in found.attributes.items() if name.startswith(METADATA)}
    if metadata:
        data["metadata"] = metadata
    return data
