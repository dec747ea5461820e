"""A folder of the host held by a descriptor. Nothing beneath it is reached through a link, and no call waits.

Strangers write repositories: names, links, pipes and depth are hostile. Paths here are relative, with forward slashes;
names that are not UTF-8 have surrogate escapes. The code works without git and without openat2, so it is the same on
every host.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CHUNK = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Code points that HFS+ leaves out when it compares names, so that ".g\u200cit" is .git there (git's utf8.c has the same list).
_IGNORED_BY_HFS = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_GIT_SHORT_NAME = re.compile(r"git~\d+")


class UnsafePathError(ValueError):
    """A path that names nothing beneath a folder: absolute, or with an empty, ``.`` or ``..`` part."""


def split(path: str) -> tuple[str, ...]:
    """Return the parts of a relative path. Raises UnsafePathError unless each of them is a name."""
    parts = tuple(path.split("/"))
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise UnsafePathError(f"{path!r:.200} is not a path inside the repository")
    return parts


def is_git_name(name: str) -> bool:
    """Return whether some file system takes ``name`` for ``.git``: by case, trailing dots, a stream, a short name,
    hidden characters.
    """
    plain = _IGNORED_BY_HFS.sub("", name).split(":", 1)[0].rstrip(". ").casefold()
    return plain == ".git" or _GIT_SHORT_NAME.fullmatch(plain) is not None


def leads_into_git(path: str) -> bool:
    """Return whether a part of ``path`` is ``.git`` to some file system; a backslash separates parts on some."""
    return any(is_git_name(part) for part in re.split(r"[/\\]", path))


class Folder:
    """The folder ``root``, or ``below`` it, held open. ``root`` is named by the user and may be a link; no link is followed from
    there on. Raises OSError, and UnsafePathError for a ``below`` that is not a path.

    Use it in one thread at a time. Methods raise OSError: ELOOP or ENOTDIR where a part of a path is a link.
    """

    def __init__(self, root: Path, below: str = "") -> None:
        self.root = root / below
        parts = split(below) if below else ()
        # The folder that was used last: neighbours in a sorted list of files share it.
        self._near: tuple[tuple[str, ...], int] | None = None
        self._fd = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
        try:
            fd = os.dup(self._enter(parts))
        finally:
            self.close()
        self._fd = fd

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the descriptors; may be called twice."""
        self._forget()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def owner(self) -> int:
        """Return the number of the user who owns it."""
        return os.fstat(self._fd).st_uid

    def _forget(self) -> None:
        if self._near is not None:
            os.close(self._near[1])
            self._near = None

    def _enter(self, parts: tuple[str, ...], *, make: bool = False) -> int:
        """Return a descriptor of the folder ``parts``, which stays ours and is valid until the next call."""
        if not parts:
            return self._fd
        near, fd = self._near or ((), self._fd)
        if near == parts:
            return fd
        done = len(near) if parts[: len(near)] == near else 0
        fd = os.dup(fd if done else self._fd)
        try:
            for name in parts[done:]:
                if make:
                    try:
                        os.mkdir(name, dir_fd=fd)
                    except FileExistsError:
                        pass
                below = os.open(name, _FOLDER, dir_fd=fd)
                os.close(fd)
                fd = below
        except BaseException:
            os.close(fd)
            raise
        self._forget()
        self._near = (parts, fd)
        return fd

    def status(self, path: str) -> os.stat_result | None:
        """Return the status of what is at ``path``, of a link itself; None if nothing is there or a link is on the way."""
        *folder, name = split(path)
        try:
            return os.stat(name, dir_fd=self._enter(tuple(folder)), follow_symlinks=False)
        except OSError as error:
            if error.errno in _NOT_THERE:
                return None
            raise

    def entries(self, folder: str = "") -> list[tuple[str, os.stat_result]]:
        """Return the names in ``folder`` with their status, of links themselves, sorted."""
        found = []
        with os.scandir(self._enter(split(folder) if folder else ())) as there:
            for entry in there:
                try:
                    found.append((entry.name, entry.stat(follow_symlinks=False)))
                except FileNotFoundError:  # removed by another process just now
                    continue
        return sorted(found, key=lambda each: each[0])

    def names(self, folder: str = "") -> list[str]:
        """Return the names in ``folder``; none if it is not a folder that is reached without links."""
        try:
            return os.listdir(self._enter(split(folder) if folder else ()))  # noqa: PTH208 - of a descriptor
        except OSError as error:
            if error.errno in _NOT_THERE:
                return []
            raise

    def open(self, path: str) -> BinaryIO:
        """Open the regular file at ``path`` for reading. Raises OSError EINVAL for everything else, and never waits."""
        *folder, name = split(path)
        return _regular(os.open(name, _FILE, dir_fd=self._enter(tuple(folder))), path)

    def read(self, path: str, most_bytes: int) -> bytes | None:
        """Return the bytes of a regular file; None for anything else, and for a file of more than ``most_bytes``."""
        try:
            with self.open(path) as file:
                data = file.read(most_bytes + 1)
        except OSError:
            return None
        return data if len(data) <= most_bytes else None

    def link(self, path: str) -> str:
        """Return the target of the link at ``path``."""
        *folder, name = split(path)
        return os.readlink(name, dir_fd=self._enter(tuple(folder)))

    def create(self, path: str, mode: int = 0o644) -> BinaryIO:
        """Create a file that is not there yet, and its parents."""
        *folder, name = split(path)
        fd = os.open(name, _NEW, mode, dir_fd=self._enter(tuple(folder), make=True))
        return os.fdopen(fd, "wb")

    def create_link(self, path: str, target: str) -> None:
        """Create a link that is not there yet, and its parents."""
        *folder, name = split(path)
        os.symlink(target, name, dir_fd=self._enter(tuple(folder), make=True))

    def replace(self, path: str, source: BinaryIO, mode: int, times_ns: tuple[int, int] | None = None) -> None:
        """Make ``path`` a file with the bytes of ``source``, in one step and with its parents; a file or link there is replaced."""
        temporary = self._temporary(path)
        try:
            with self.create(temporary) as file:
                shutil.copyfileobj(source, file, _CHUNK)
                os.fchmod(file.fileno(), mode)
                if times_ns is not None:
                    file.flush()
                    os.utime(file.fileno(), ns=times_ns)
            self._rename(temporary, path)
        except BaseException:
            self._discard(temporary)
            raise

    def replace_with_link(self, path: str, target: str) -> None:
        """Make ``path`` a link, in one step and with its parents; a file or link there is replaced."""
        temporary = self._temporary(path)
        try:
            self.create_link(temporary, target)
            self._rename(temporary, path)
        except BaseException:
            self._discard(temporary)
            raise

    @staticmethod
    def _temporary(path: str) -> str:
        return "/".join((*split(path)[:-1], f".gamebox-{secrets.token_hex(8)}"))

    def _rename(self, temporary: str, path: str) -> None:
        *folder, name = split(path)
        fd = self._enter(tuple(folder))
        os.rename(split(temporary)[-1], name, src_dir_fd=fd, dst_dir_fd=fd)

    def _discard(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self.unlink(path)

    def unlink(self, path: str) -> None:
        """Remove a file or link."""
        *folder, name = split(path)
        os.unlink(name, dir_fd=self._enter(tuple(folder)))

    def remove_empty(self, folder: str) -> None:
        """Remove ``folder`` if it is empty, then its parents if they are empty then."""
        parts = split(folder) if folder else ()
        self._forget()
        while parts:
            try:
                os.rmdir(parts[-1], dir_fd=self._enter(parts[:-1]))
            except OSError:
                break
            parts = parts[:-1]
        self._forget()

    def remove_folders(self, folder: str) -> None:
        """Remove ``folder`` and the folders in it. Raises OSError ENOTEMPTY if one has anything else."""
        found, waiting = [], [folder]
        while waiting:
            here = waiting.pop()
            found.append(here)
            waiting += [f"{here}/{name}" for name, status in self.entries(here) if stat.S_ISDIR(status.st_mode)]
        for each in reversed(found):
            *parents, name = split(each)
            os.rmdir(name, dir_fd=self._enter(tuple(parents)))
        self._forget()


_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def _regular(fd: int, path: object) -> BinaryIO:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(fd, "rb")


def read_file(path: Path, most_bytes: int) -> bytes:
    """Return the bytes of a regular file that the user named; links on the way to it are followed, nothing is waited for.

    Raises OSError: EINVAL for a pipe, a device or the like, EFBIG for more than ``most_bytes``.
    """
    with _regular(os.open(path, _FILE & ~os.O_NOFOLLOW), path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 20} MiB", str(path))
    return data


def walk_files(tree: Folder) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each file and link beneath ``tree`` with its status, at any depth; what is named like .git is left out."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        prefix = f"{folder}/" if folder else ""
        below = []
        for name, status in tree.entries(folder):
            if is_git_name(name):
                continue
            if stat.S_ISDIR(status.st_mode):
                below.append(f"{prefix}{name}")
            else:
                yield f"{prefix}{name}", status
        waiting.extend(reversed(below))
