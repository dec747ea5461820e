"""Walk, make and remove folders of the host of any depth: plain recursion would end at about a thousand levels."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from sandbox.errors import ErrorCode, OperationError

SHOWN_CHARS = 200
# Each level holds a descriptor while what is below it is removed.
_LEVELS_AT_ONCE = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def walk(
    folder: str | os.PathLike[str], enters: Callable[[os.DirEntry[str]], bool] = lambda _entry: True
) -> Iterator[os.DirEntry[str]]:
    """Yield everything below ``folder``, each folder before what is in it, sorted by name. Does not follow links.

    A folder that ``enters`` refuses is yielded, and nothing below it.
    Raises OSError, OperationError ``path_invalid`` for a path that is longer than the system allows.
    """
    levels = [_entries(os.fspath(folder))]
    while levels:
        entry = next(levels[-1], None)
        if entry is None:
            levels.pop()
            continue
        yield entry
        if entry.is_dir(follow_symlinks=False) and enters(entry):
            levels.append(_entries(entry.path))


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return iter(sorted(found, key=lambda entry: entry.name))
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise too_long(folder) from error
        raise


def too_long(path: str) -> OperationError:
    """Return the error for a path of the host that is longer than the system allows."""
    levels = path.count(os.sep)
    return OperationError(
        ErrorCode.path_invalid,
        f"{path[:SHOWN_CHARS]!r}... on the host goes {levels} folders deep: its path has {len(os.fsencode(path))} bytes, "
        "more than the system allows.",
        "Copy a part of it, or remove what is that deep.",
    )


def remove(folder: str | os.PathLike[str]) -> None:
    """Remove ``folder`` and everything below it. Does not follow links; leaves what cannot be removed."""
    try:
        top = os.open(folder, _FOLDER)
    except OSError:
        return
    try:
        moved: list[str] = []
        _empty(top, top, moved, 0)
        while moved:
            _remove(moved.pop(), top, top, moved, 0)
    finally:
        os.close(top)
    with contextlib.suppress(OSError):
        Path(folder).rmdir()


def _remove(name: str, parent: int, top: int, moved: list[str], level: int) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(name, _FOLDER, dir_fd=parent)
        try:
            _empty(fd, top, moved, level)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=parent)


def _empty(fd: int, top: int, moved: list[str], level: int) -> None:
    """Remove what is in the folder ``fd``. Moves folders that are too deep to ``top``, under new names that go to ``moved``."""
    os.fchmod(fd, 0o700)
    with os.scandir(fd) as found:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    for name, is_folder in entries:
        with contextlib.suppress(OSError):
            if not is_folder:
                os.unlink(name, dir_fd=fd)
                continue
            os.chmod(name, 0o700, dir_fd=fd)  # it may be neither opened nor moved as it is
            if level < _LEVELS_AT_ONCE:
                _remove(name, fd, top, moved, level + 1)
            else:
                new = f".{secrets.token_hex(16)}"
                os.rename(name, new, src_dir_fd=fd, dst_dir_fd=top)
                moved.append(new)
