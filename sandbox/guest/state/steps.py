"""The steps of a restore as they come in, and what they need of the file system."""

from __future__ import annotations

import errno
import os

from ..files.walking import DIRECTORY
from ..protocol.faults import Fault
from ..protocol.records import PART

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 1 << 18
BLOCK = 4096
_ZEROS = bytes(CHUNK)


class Step:
    """One record; ``staged`` is the name under which its file or link lies in the staging folder."""

    __slots__ = ("gid", "kind", "mode", "mtime", "path", "root", "staged", "target", "uid")

    def __init__(self, root: int, kind: bytes, mode: int, uid: int, gid: int, mtime: int, path: bytes, target: bytes):
        self.root, self.kind, self.mode, self.uid, self.gid, self.mtime = root, kind, mode, uid, gid, mtime
        self.path, self.target = path, target
        self.staged = b""


class Stream:
    """A body of chunks as something to read from."""

    def __init__(self, body: Iterator[bytes]) -> None:
        self._body, self._rest = body, b""

    def exactly(self, size: int) -> bytes:
        """That many bytes. Raises Fault at the end."""
        parts = []
        while size > 0:
            data = self.some(size)
            parts.append(data)
            size -= len(data)
        return b"".join(parts)

    def some(self, size: int) -> bytes:
        """At least one byte. Raises Fault at the end."""
        while not self._rest:
            chunk = next(self._body, None)
            if chunk is None:
                raise Fault("transfer_incomplete", problem="the stream ended too soon")
            self._rest = chunk
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def change_mode(fd: int, mode: int) -> None:
    """Change the mode of what a descriptor opened with O_PATH stands for; fchmod refuses those, a process may reach its own so."""
    os.chmod(b"/proc/self/fd/%d" % fd, mode)


def open_up(folder: int, name: bytes) -> None:
    """Let the owner of a folder, and of all folders in it, do everything with them, however deep they are. Raises OSError."""
    try:
        here = _opened_up(folder, name)
    except NotADirectoryError:
        return
    above: list[tuple[int, int, list[bytes]]] = []  # one descriptor is held, not one for each level
    try:
        left = _folders_in(here)
        while left or above:
            if left:
                inner = _opened_up(here, left.pop())
                status = os.fstat(here)
                above.append((status.st_dev, status.st_ino, left))
                os.close(here)
                here, left = inner, _folders_in(inner)
                continue
            outer = os.open(b"..", DIRECTORY, dir_fd=here)
            os.close(here)
            here = outer
            status = os.fstat(here)
            *known, left = above.pop()
            if [status.st_dev, status.st_ino] != known:
                raise OSError(errno.ESTALE, "a folder was moved meanwhile")
    finally:
        os.close(here)


def _opened_up(folder: int, name: bytes) -> int:
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        change_mode(fd, 0o700)
        return os.open(b".", DIRECTORY, dir_fd=fd)
    finally:
        os.close(fd)


def _folders_in(fd: int) -> list[bytes]:
    with os.scandir(fd) as entries:
        return [os.fsencode(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]


def write_content(fd: int, stream: Stream) -> None:
    """Write a file of the parts that come; whole blocks of zeros are left as holes. Raises OSError, Fault."""
    while True:
        at, length = PART.unpack(stream.exactly(PART.size))
        if not length:
            os.ftruncate(fd, at)
            return
        _write(fd, at, length, stream)


def _write(fd: int, at: int, length: int, stream: Stream) -> None:
    """Write a part; whole blocks of zeros are left as holes."""
    end = at + length
    while at < end:
        data = stream.some(min(CHUNK, end - at))
        if data != _ZEROS[: len(data)] or len(data) < BLOCK:
            view, where = memoryview(data), at
            while view:
                written = os.pwrite(fd, view, where)
                view, where = view[written:], where + written
        at += len(data)
