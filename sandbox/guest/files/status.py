"""What a path is: the handler of ``stat``."""

from __future__ import annotations

import os
import stat

from ..loop.context import Call
from ..protocol.faults import Fault
from ..users import name_of
from .beneath import readable_roots_of, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def status_of(call: Call) -> dict[str, Any]:
    """The handler of ``stat``: links are followed; one that leads nowhere, or outside the roots, is described itself."""
    path: str = call.args["path"]
    roots = readable_roots_of(call.place)
    link: os.stat_result | None = None
    target: bytes | None = None
    try:
        folder, name = roots.parent(path, follow=False)
    except Fault as fault:
        if fault.code != "path_invalid":  # a root, or what no path can be
            raise
    else:
        try:
            link = os.stat(name, dir_fd=folder, follow_symlinks=False)
            target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(link.st_mode) else None
        except OSError as error:
            raise roots.fault(error, path) from None
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
        "path": roots.display(path), "type": _type(status.st_mode), "size_bytes": status.st_size,
        "mode": stat.S_IMODE(status.st_mode), "uid": status.st_uid, "gid": status.st_gid,
        "owner": name_of(status.st_uid), "mtime_seconds": status.st_mtime,
        "link_target": None if target is None else shown(target),
    }  # fmt: skip


def _type(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"
