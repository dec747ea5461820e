"""Changing the tree of folders: make_dir, move, delete."""

from __future__ import annotations

import ctypes
import errno
import os
import stat

from ..loop.context import Call
from ..protocol.faults import Fault
from .beneath import Roots, roots_of
from .copying import copy
from .walking import DIRECTORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RENAME_NOREPLACE = 1
LEVELS = 100  # folders held open at once while a tree is deleted

_libc = ctypes.CDLL(None, use_errno=True)


def make_dir(call: Call) -> dict[str, Any]:
    """The handler of ``make_dir``."""
    path: str = call.args["path"]
    roots = roots_of(call.place)
    try:
        fd, made = roots.make_dirs(path)
    except Fault as fault:
        if fault.code == "not_a_directory":
            raise _what_is_there(roots, path, fault) from None
        raise
    os.close(fd)
    return {"path": roots.display(path), "created": made > 0}


def _what_is_there(roots: Roots, path: str, fault: Fault) -> Fault:
    """``path_exists`` where the path itself is a file, and not one of its parents."""
    try:
        folder, name = roots.parent(path, follow=False)
    except Fault:
        return fault
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return fault
    finally:
        os.close(folder)
    return Fault("path_exists", path=roots.display(path))


def move(call: Call) -> dict[str, Any]:
    """The handler of ``move``: a rename where source and target are on one file system, else a copy and a delete."""
    source, target = call.args["source"], call.args["target"]
    roots = roots_of(call.place)
    source_dir, source_name = roots.parent(source, follow=False)
    try:
        target_dir, target_name = roots.parent(target, follow=False)
        try:
            _move(
                roots,
                (source_dir, source_name, source),
                (target_dir, target_name, target),
                bool(call.args.get("overwrite")),
            )
        finally:
            os.close(target_dir)
    finally:
        os.close(source_dir)
    return {"source": roots.display(source), "target": roots.display(target)}


End = tuple[int, bytes, str]


def _move(roots: Roots, source: End, target: End, overwrite: bool) -> None:
    status = _status(roots, source)
    try:
        existing = os.stat(target[1], dir_fd=target[0], follow_symlinks=False)
    except FileNotFoundError:
        existing = None
    if existing is not None:
        if not overwrite:
            raise Fault("path_exists", path=roots.display(target[2]))
        if stat.S_ISDIR(existing.st_mode):
            raise Fault("is_a_directory", path=roots.display(target[2]))
        if stat.S_ISDIR(status.st_mode):
            raise Fault("not_a_directory", path=roots.display(target[2]))
    try:
        rename(source, target, replace=overwrite)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise Fault(
                "path_invalid", path=roots.display(target[2]), problem="it lies inside the folder to be moved"
            ) from None
        if error.errno != errno.EXDEV:
            raise _refused(roots, error, source, target) from None
        _move_by_copy(roots, source, target, overwrite)


def _refused(roots: Roots, error: OSError, source: End, target: End) -> Fault:
    """The fault of a rename: at its source where only that folder forbids it, else at its target."""
    fault = roots.fault(error, target[2], entry=True)
    if fault.code == "permission_denied" and fault.fields.get("part") is None:
        at_source = roots.fault(error, source[2], entry=True)
        return at_source if at_source.fields.get("part") is not None else fault
    return fault


def _move_by_copy(roots: Roots, source: End, target: End, overwrite: bool) -> None:
    """To another file system: copied under another name, put in place in one step, then deleted at the source."""
    temporary = b".gamebox-" + os.urandom(8).hex().encode()
    beside = (target[0], temporary, target[2])
    try:
        copy(source[0], source[1], target[0], temporary)
        rename(beside, target, replace=overwrite)
    except (OSError, Fault) as error:
        _discard(target[0], temporary)
        if isinstance(error, Fault) and error.fields.get("too_deep"):
            error.fields["path"] = roots.display(source[2])
        raise (error if isinstance(error, Fault) else roots.fault(error, target[2], entry=True)) from None
    try:
        _delete(source[0], source[1], _Count())
    except OSError as error:
        raise roots.fault(error, source[2], effects="partial", entry=True) from None


def rename(source: End, target: End, *, replace: bool) -> None:
    """Rename; without ``replace`` an existing target is EEXIST, in one step where the file system can do that."""
    if replace:
        os.rename(source[1], target[1], src_dir_fd=source[0], dst_dir_fd=target[0])
        return
    if _libc.renameat2(source[0], source[1], target[0], target[1], RENAME_NOREPLACE) == 0:
        return
    number = ctypes.get_errno()
    if number not in (errno.ENOSYS, errno.EINVAL):
        raise OSError(number, os.strerror(number))
    try:
        os.stat(target[1], dir_fd=target[0], follow_symlinks=False)
    except FileNotFoundError:
        os.rename(source[1], target[1], src_dir_fd=source[0], dst_dir_fd=target[0])
        return
    raise FileExistsError(errno.EEXIST, "exists")


class _Count:
    entries = 0


def delete(call: Call) -> dict[str, Any]:
    """The handler of ``delete``: a link itself is deleted, a folder that is not empty only with ``recursive``."""
    path: str = call.args["path"]
    roots = roots_of(call.place)
    folder, name = roots.parent(path, follow=False)
    count = _Count()
    result = {"path": roots.display(path)}
    try:
        status = _status(roots, (folder, name, path))
        if stat.S_ISDIR(status.st_mode) and not call.args.get("recursive"):
            os.rmdir(name, dir_fd=folder)
            count.entries = 1
        else:
            _delete(folder, name, count)
    except OSError as error:
        effects = "partial" if count.entries else "none"
        fault = roots.fault(error, path, effects=effects, entry=True)
        fault.result = {**result, "entries_deleted": count.entries}
        raise fault from None
    finally:
        os.close(folder)
    return {**result, "entries_deleted": count.entries}


def _status(roots: Roots, end: End) -> os.stat_result:
    try:
        return os.stat(end[1], dir_fd=end[0], follow_symlinks=False)
    except OSError as error:
        raise roots.fault(error, end[2]) from None


def remove_tree(folder: int, name: bytes) -> int:
    """Delete ``name`` with all that is in it; how many entries that were. Raises OSError."""
    count = _Count()
    _delete(folder, name, count)
    return count.entries


def _discard(folder: int, name: bytes) -> None:
    try:
        _delete(folder, name, _Count())
    except FileNotFoundError:
        return


def _delete(folder: int, name: bytes, count: _Count) -> None:
    """Delete ``name`` with all that is in it, folders deepest first, on held descriptors. Raises OSError."""
    try:
        os.unlink(name, dir_fd=folder)
        count.entries += 1
        return
    except IsADirectoryError:
        top = os.open(name, DIRECTORY, dir_fd=folder)
    levels = [(top, folder, name)]
    try:
        while levels:
            fd, above, own = levels[-1]
            child = _empty(fd, levels[0][0], len(levels) >= LEVELS, count)
            if child is not None:
                levels.append((os.open(child, DIRECTORY, dir_fd=fd), fd, child))
                continue
            os.close(levels.pop()[0])
            os.rmdir(own, dir_fd=above)
            count.entries += 1
    finally:
        for level in levels:
            os.close(level[0])


def _empty(fd: int, top: int, too_deep: bool, count: _Count) -> bytes | None:
    """Delete the files of a folder; the name of a folder in it that must go first, None when it is empty.

    A folder too far down to hold all folders above it open is brought up to the top of the tree and goes later.
    """
    os.lseek(fd, 0, os.SEEK_SET)
    with os.scandir(fd) as entries:
        for entry in entries:
            name = os.fsencode(entry.name)
            try:
                os.unlink(name, dir_fd=fd)
                count.entries += 1
            except IsADirectoryError:
                if not too_deep:
                    return name
                os.rename(name, b".gamebox-" + os.urandom(8).hex().encode(), src_dir_fd=fd, dst_dir_fd=top)
    return None
