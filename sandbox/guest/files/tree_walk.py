"""Walking a tree of folders on held descriptors; symbolic links are listed, never followed."""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
NAMES = 100_000  # in one folder; further ones are skipped
LEVELS = 500  # folders held open at once


class Item:
    """An entry of a tree: ``path`` from its top, ``name`` in ``folder_fd``, which is open until the next item."""

    __slots__ = ("folder_fd", "name", "path", "status")

    def __init__(self, path: bytes, name: bytes, folder_fd: int, status: os.stat_result) -> None:
        self.path = path
        self.name = name
        self.folder_fd = folder_fd
        self.status = status


def walk(
    top_fd: int,
    depth: int | None = None,
    on_skip: Callable[[bytes], None] | None = None,
    accept: Callable[[bytes], bool] | None = None,
) -> Generator[Item, None, None]:
    """Yield everything beneath a folder, sorted, each folder before its contents. Closes ``top_fd`` at the end.

    ``on_skip`` is called with the path of each folder that could not be read completely or lies deeper than LEVELS, but not for
    folders beyond ``depth``. Names that ``accept`` rejects are left out with everything below them.
    """
    skip = on_skip or (lambda _: None)
    levels: list[tuple[int, bytes, Iterator[bytes]]] = [(top_fd, b"", iter(()))]
    try:
        levels[0] = (top_fd, b"", iter(_names(top_fd, b"", skip)))
        while levels:
            fd, prefix, names = levels[-1]
            name = next(names, None)
            if name is None:
                os.close(levels.pop()[0])
                continue
            if accept is not None and not accept(name):
                continue
            try:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            path = prefix + name
            yield Item(path, name, fd, status)
            if stat.S_ISDIR(status.st_mode) and (depth is None or len(levels) < depth):
                _descend(levels, fd, name, path, skip)
    finally:
        for level in levels:
            os.close(level[0])


def enter(top_fd: int, folders: Iterable[bytes]) -> int:
    """Open the folder that ``folders`` lead to from ``top_fd``, one in the other, following no links. Raises OSError."""
    here = os.dup(top_fd)
    for folder in folders:
        try:
            inner = os.open(folder, DIRECTORY, dir_fd=here)
        finally:
            os.close(here)
        here = inner
    return here


def _descend(
    levels: list[tuple[int, bytes, Iterator[bytes]]], fd: int, name: bytes, path: bytes, skip: Callable[[bytes], None]
) -> None:
    if len(levels) >= LEVELS:
        skip(path)
        return
    try:
        child = os.open(name, DIRECTORY, dir_fd=fd)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # gone or replaced meanwhile
            skip(path)
        return
    levels.append((child, path + b"/", iter(())))
    levels[-1] = (child, path + b"/", iter(_names(child, path, skip)))


def _names(fd: int, path: bytes, skip: Callable[[bytes], None]) -> list[bytes]:
    names: list[bytes] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if len(names) == NAMES:
                skip(path)
                break
            names.append(os.fsencode(entry.name))  # scandir of a descriptor returns text
    return sorted(names)
