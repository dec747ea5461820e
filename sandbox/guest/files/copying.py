"""Copying a file, link or folder from one held folder to another."""

from __future__ import annotations

import os
import stat

from ..protocol.faults import Fault
from .beneath import SAFE, kind_of, shown
from .walking import DIRECTORY, LEVELS, walk

CHUNK = 1 << 20
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def copy(source_dir: int, source: bytes, target_dir: int, target: bytes) -> None:
    """Copy with modes and times; ``target`` must not exist.

    Raises OSError, Fault for FIFOs, sockets, devices, folders that cannot be read or lie too deep (``path_invalid``).
    """
    status = os.stat(source, dir_fd=source_dir, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        _copy_one(source_dir, source, status, target_dir, target)
        return
    os.mkdir(target, 0o700, dir_fd=target_dir)
    modes = [(b"", status.st_mode)]
    unread: list[bytes] = []
    top = os.open(target, DIRECTORY, dir_fd=target_dir)
    try:
        items = walk(os.open(source, DIRECTORY, dir_fd=source_dir), passed_over=unread.append)
        for item in items:
            inner, name = _enter(top, item.path)
            try:
                if stat.S_ISDIR(item.status.st_mode):
                    os.mkdir(name, 0o700, dir_fd=inner)
                    modes.append((item.path, item.status.st_mode))
                else:
                    _copy_one(item.folder_fd, item.name, item.status, inner, name)
            finally:
                os.close(inner)
        if unread:
            raise _not_all(unread[0])
        for path, mode in reversed(modes):
            inner, _ = _enter(top, path + b"/")
            try:
                os.fchmod(inner, stat.S_IMODE(mode))
            finally:
                os.close(inner)
    finally:
        os.close(top)


def _not_all(path: bytes) -> Fault:
    """Why nothing was read below ``path``, or not all."""
    if path.count(b"/") + 1 >= LEVELS:
        return Fault("path_invalid", path=shown(path), too_deep=True, limit=LEVELS)
    return Fault("permission_denied", path=shown(path), problem="not all of this folder could be read")


def _enter(top: int, path: bytes) -> tuple[int, bytes]:
    """The folder of ``path`` beneath ``top``, no link followed on the way, and the name in it."""
    *folders, name = path.split(b"/")
    here = os.dup(top)
    for folder in filter(None, folders):
        try:
            inner = os.open(folder, DIRECTORY, dir_fd=here)
        finally:
            os.close(here)
        here = inner
    return here, name


def _copy_one(source_dir: int, source: bytes, status: os.stat_result, target_dir: int, target: bytes) -> None:
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source, dir_fd=source_dir), target, dir_fd=target_dir)
        return
    if not stat.S_ISREG(status.st_mode):
        raise Fault("not_a_regular_file", path=shown(source), kind=kind_of(status.st_mode))
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | SAFE, dir_fd=source_dir)
    try:
        real = os.fstat(reader)
        if not stat.S_ISREG(real.st_mode):
            raise Fault("not_a_regular_file", path=shown(source), kind=kind_of(real.st_mode))
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
