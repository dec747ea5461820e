"""Going through a tree of folders on held descriptors: links are seen, never followed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
NAMES = 100_000  # of one folder; what it holds beyond is passed over
LEVELS = 500  # folders held open at once


class Item:
    """Something in a tree: ``path`` from its top, ``name`` in ``folder_fd``, open until the next item."""

    __slots__ = ("folder_fd", "name", "path", "status")

    def __init__(self, path: bytes, name: bytes, folder_fd: int, status: os.stat_result) -> None:
        self.path = path
        self.name = name
        self.folder_fd = folder_fd
        self.status = status


def walk(
    top_fd: int,
    depth: int | None = None,
    passed_over: Callable[[bytes], None] | None = None,
    wanted: Callable[[bytes], bool] | None = None,
) -> Generator[Item, None, None]:
    """Everything beneath a folder, sorted, a folder before what is in it. ``top_fd`` is closed at the end.

    ``passed_over`` is told the path of each folder that could not be read, or not all of it, or that lies deeper than LEVELS; what
    is beyond a ``depth`` that was asked for is not. What is not ``wanted`` by its
    name is left out with all that is in it.
    """
    tell = passed_over or (lambda _: None)
    levels: list[tuple[int, bytes, Iterator[bytes]]] = [(top_fd, b"", iter(()))]
    try:
        levels[0] = (top_fd, b"", iter(_names(top_fd, b"", tell)))
        while levels:
            fd, prefix, names = levels[-1]
            name = next(names, None)
            if name is None:
                os.close(levels.pop()[0])
                continue
            if wanted is not None and not wanted(name):
                continue
            try:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            path = prefix + name
            yield Item(path, name, fd, status)
            if stat.S_ISDIR(status.st_mode) and (depth is None or len(levels) < depth):
                _descend(levels, fd, name, path, tell)
    finally:
        for level in levels:
            os.close(level[0])


def _descend(
    levels: list[tuple[int, bytes, Iterator[bytes]]], fd: int, name: bytes, path: bytes, tell: Callable[[bytes], None]
) -> None:
    if len(levels) >= LEVELS:
        tell(path)
        return
    try:
        child = os.open(name, DIRECTORY, dir_fd=fd)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # gone or exchanged meanwhile
            tell(path)
        return
    levels.append((child, path + b"/", iter(())))
    levels[-1] = (child, path + b"/", iter(_names(child, path, tell)))


def _names(fd: int, path: bytes, tell: Callable[[bytes], None]) -> list[bytes]:
    names: list[bytes] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if len(names) == NAMES:
                tell(path)
                break
            names.append(os.fsencode(entry.name))  # scandir of a descriptor gives text
    return sorted(names)
