"""Changing the tree of folders: making folders, moving, copying and deleting."""

from __future__ import annotations

import ctypes
import errno
import os
import stat

from ..loop.context import Call
from ..protocol.faults import Fault
from .roots import SAFE, Roots, file_kind, printable, roots_of
from .tree_walk import DIRECTORY, LEVELS, enter, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RENAME_NOREPLACE = 1
HELD_LEVELS = 100  # folders held open at once while a tree is deleted
CHUNK = 1 << 20
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


def make_dir(call: Call) -> dict[str, Any]:
    """Handle ``make_dir``. Raises Fault."""
    path: str = call.args["path"]
    roots = roots_of(call.place)
    try:
        fd, made = roots.make_dirs(path)
    except Fault as fault:
        if fault.code == "not_a_directory":
            raise _existing_file_fault(roots, path, fault) from None
        raise
    os.close(fd)
    return {"path": roots.display(path), "created": made > 0}


def _existing_file_fault(roots: Roots, path: str, fault: Fault) -> Fault:
    """Return ``path_exists`` if the path itself is a file; ``fault`` if one of its parents is."""
    try:
        folder, name = roots.open_parent(path)
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
    """Handle ``move``: rename if source and target are on one file system, otherwise copy and delete. Raises Fault."""
    source, target = call.args["source"], call.args["target"]
    roots = roots_of(call.place)
    source_dir, source_name = roots.open_parent(source)
    try:
        target_dir, target_name = roots.open_parent(target)
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
            raise _rename_fault(roots, error, source, target) from None
        _move_by_copy(roots, source, target, overwrite)


def _rename_fault(roots: Roots, error: OSError, source: End, target: End) -> Fault:
    """Return the fault of a rename: for its source if only the folder there forbids it, otherwise for its target."""
    fault = roots.fault_for(error, target[2], entry=True)
    if fault.code == "permission_denied" and fault.fields.get("part") is None:
        at_source = roots.fault_for(error, source[2], entry=True)
        return at_source if at_source.fields.get("part") is not None else fault
    return fault


def _move_by_copy(roots: Roots, source: End, target: End, overwrite: bool) -> None:
    """Move to another file system: copy under another name, rename in one step, then delete the source."""
    temporary = b".gamebox-" + os.urandom(8).hex().encode()
    beside = (target[0], temporary, target[2])
    try:
        copy(source[0], source[1], target[0], temporary)
        rename(beside, target, replace=overwrite)
    except (OSError, Fault) as error:
        _discard(target[0], temporary)
        if isinstance(error, Fault) and error.fields.get("too_deep"):
            error.fields["path"] = roots.display(source[2])
        raise (error if isinstance(error, Fault) else roots.fault_for(error, target[2], entry=True)) from None
    try:
        _delete(source[0], source[1], _Count())
    except OSError as error:
        raise roots.fault_for(error, source[2], effects="partial", entry=True) from None


def rename(source: End, target: End, *, replace: bool) -> None:
    """Rename. Raises OSError; without ``replace``, EEXIST if the target exists (checked in one step if the file system can)."""
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


def copy(source_dir: int, source: bytes, target_dir: int, target: bytes) -> None:
    """Copy a file, link or folder with modes and times; ``target`` must not exist.

    Raises OSError, and Fault for FIFOs, sockets, devices, and folders that are unreadable or too deep (``path_invalid``).
    """
    status = os.stat(source, dir_fd=source_dir, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        _copy_file(source_dir, source, status, target_dir, target)
        return
    os.mkdir(target, 0o700, dir_fd=target_dir)
    modes = [(b"", status.st_mode)]
    unread: list[bytes] = []
    top = os.open(target, DIRECTORY, dir_fd=target_dir)
    try:
        items = walk(os.open(source, DIRECTORY, dir_fd=source_dir), on_skip=unread.append)
        for item in items:
            inner, name = _enter_beneath(top, item.path)
            try:
                if stat.S_ISDIR(item.status.st_mode):
                    os.mkdir(name, 0o700, dir_fd=inner)
                    modes.append((item.path, item.status.st_mode))
                else:
                    _copy_file(item.folder_fd, item.name, item.status, inner, name)
            finally:
                os.close(inner)
        if unread:
            raise _unread_fault(unread[0])
        for path, mode in reversed(modes):
            inner, _ = _enter_beneath(top, path + b"/")
            try:
                os.fchmod(inner, stat.S_IMODE(mode))
            finally:
                os.close(inner)
    finally:
        os.close(top)


def _unread_fault(path: bytes) -> Fault:
    """Return the fault for a folder that could not be read completely."""
    if path.count(b"/") + 1 >= LEVELS:
        return Fault("path_invalid", path=printable(path), too_deep=True, limit=LEVELS)
    return Fault("permission_denied", path=printable(path), problem="not all of this folder could be read")


def _enter_beneath(top: int, path: bytes) -> tuple[int, bytes]:
    """Open the folder of ``path`` beneath ``top``, following no links. Returns its descriptor and the name in it."""
    *folders, name = path.split(b"/")
    return enter(top, filter(None, folders)), name


def _copy_file(source_dir: int, source: bytes, status: os.stat_result, target_dir: int, target: bytes) -> None:
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source, dir_fd=source_dir), target, dir_fd=target_dir)
        return
    if not stat.S_ISREG(status.st_mode):
        raise Fault("not_a_regular_file", path=printable(source), kind=file_kind(status.st_mode))
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | SAFE, dir_fd=source_dir)
    try:
        real = os.fstat(reader)
        if not stat.S_ISREG(real.st_mode):
            raise Fault("not_a_regular_file", path=printable(source), kind=file_kind(real.st_mode))
        writer = os.open(target, NEW, 0o600, dir_fd=target_dir)
        try:
            left = real.st_size
            while left > 0 and (data := os.read(reader, min(CHUNK, left))):
                left -= len(data)
                view = memoryview(data)
                while view:
                    view = view[os.write(writer, view) :]
            os.fchmod(writer, stat.S_IMODE(real.st_mode))
            os.utime(writer, ns=(real.st_atime_ns, real.st_mtime_ns))
        finally:
            os.close(writer)
    finally:
        os.close(reader)


class _Count:
    entries = 0


def delete(call: Call) -> dict[str, Any]:
    """Handle ``delete``: delete a link itself, and a folder that is not empty only with ``recursive``. Raises Fault."""
    path: str = call.args["path"]
    roots = roots_of(call.place)
    folder, name = roots.open_parent(path)
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
        fault = roots.fault_for(error, path, effects=effects, entry=True)
        fault.result = {**result, "entries_deleted": count.entries}
        raise fault from None
    finally:
        os.close(folder)
    return {**result, "entries_deleted": count.entries}


def _status(roots: Roots, end: End) -> os.stat_result:
    try:
        return os.stat(end[1], dir_fd=end[0], follow_symlinks=False)
    except OSError as error:
        raise roots.fault_for(error, end[2]) from None


def remove_tree(folder: int, name: bytes) -> int:
    """Delete ``name`` with everything below it. Returns how many entries that were. Raises OSError."""
    count = _Count()
    _delete(folder, name, count)
    return count.entries


def _discard(folder: int, name: bytes) -> None:
    try:
        _delete(folder, name, _Count())
    except FileNotFoundError:
        return


def _delete(folder: int, name: bytes, count: _Count) -> None:
    """Delete ``name`` with everything below it, deepest folders first, on held descriptors. Raises OSError."""
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
            child = _delete_files(fd, levels[0][0], len(levels) >= HELD_LEVELS, count)
            if child is not None:
                levels.append((os.open(child, DIRECTORY, dir_fd=fd), fd, child))
                continue
            os.close(levels.pop()[0])
            os.rmdir(own, dir_fd=above)
            count.entries += 1
    finally:
        for level in levels:
            os.close(level[0])


def _delete_files(fd: int, top: int, too_deep: bool, count: _Count) -> bytes | None:
    """Delete the files of a folder. Returns the name of a folder in it that must be deleted first, or None if it is empty.

    Folders that are too deep to hold all folders above them open are moved to the top of the tree and deleted later.
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
