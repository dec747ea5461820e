"""Sending the contents of many files to the host, one after the other and without holes."""

from __future__ import annotations

import errno
import os
import stat

from ..files.roots import SAFE
from ..files.tree_walk import DIRECTORY, enter
from ..loop.context import StateCall
from ..protocol.faults import Fault
from ..protocol.records import CHANGED, FETCHED, GONE, GOT, PART, WANTED
from .scanning import root_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

REQUEST_BYTES = 64 << 20
PIECE = 1 << 18


def fetch(call: StateCall) -> dict[str, Any]:
    """Handle ``fetch``: the body lists paths; their contents are streamed back in the same order."""
    folders = Folders(call)
    sender = _Sender(call)
    files = 0
    try:
        for number, (root, path) in enumerate(_requested_paths(call)):
            try:
                folder, name = folders.open_parent(root, path)
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | SAFE, dir_fd=folder)
            except OSError:  # gone, exchanged, or not ours to read
                sender.send(FETCHED.pack(number, GONE, 0, 0, 0, 0, 0))
                continue
            try:
                files += _send_content(fd, number, sender)
            finally:
                os.close(fd)
        sender.flush()
    finally:
        folders.close()
    return {"files": files}


def _requested_paths(call: StateCall) -> Iterator[tuple[int, bytes]]:
    requested = bytearray()
    for chunk in call.body():
        requested += chunk
        if len(requested) > REQUEST_BYTES:
            raise Fault("invalid_arguments", problem="too many files are asked for at once")
    at = 0
    while at < len(requested):
        start = at + WANTED.size
        root, length = WANTED.unpack_from(requested, at) if start <= len(requested) else (0, len(requested))
        at = start + length
        path = bytes(requested[start:at])
        if at > len(requested) or b"\0" in path:
            raise Fault("invalid_arguments", problem="the list of requested files is malformed")
        yield root, path


class _Sender:
    def __init__(self, call: StateCall) -> None:
        self._call, self._piece = call, bytearray()

    def send(self, data: bytes) -> None:
        self._piece += data
        if len(self._piece) >= PIECE:
            self.flush()

    def flush(self) -> None:
        if self._piece:
            self._call.send(bytes(self._piece))
            self._piece.clear()


def _send_content(fd: int, number: int, sender: _Sender) -> bool:
    """Send one file. Returns False if it is not a regular file."""
    before = os.fstat(fd)
    if not stat.S_ISREG(before.st_mode):
        sender.send(FETCHED.pack(number, GONE, 0, 0, 0, 0, 0))
        return False
    size = before.st_size
    sender.send(FETCHED.pack(number, GOT, size, before.st_mtime_ns, before.st_ctime_ns, before.st_dev, before.st_ino))
    unchanged = True
    at = 0
    while at < size:
        start, end = _find_data(fd, at, size)
        if start >= size:
            break
        if end <= start:  # a hole was made there just now; a part without bytes would mean the end
            unchanged, at = False, start + 1
            continue
        sender.send(PART.pack(start, end - start))
        unchanged = _send_part(fd, start, end, sender) and unchanged
        at = end
    sender.send(PART.pack(size, 0))
    after = os.fstat(fd)
    if (before.st_size, before.st_mtime_ns, before.st_ctime_ns) != (
        after.st_size,
        after.st_mtime_ns,
        after.st_ctime_ns,
    ):
        unchanged = False
    sender.send(CHANGED.pack(not unchanged))
    return True


def _find_data(fd: int, at: int, size: int) -> tuple[int, int]:
    """Return start and end of the next part of a file that is not a hole; (size, size) if there is none."""
    try:
        start = os.lseek(fd, at, os.SEEK_DATA)
        return min(start, size), min(os.lseek(fd, start, os.SEEK_HOLE), size)
    except OSError as error:
        if error.errno == errno.ENXIO:  # only a hole is left
            return size, size
        return at, size


def _send_part(fd: int, at: int, end: int, sender: _Sender) -> bool:
    """Send exactly these bytes, zeros for any that are gone. Returns whether all were there."""
    while at < end:
        try:
            data = os.pread(fd, min(PIECE, end - at), at)
        except OSError:
            data = b""
        if not data:
            while at < end:
                piece = bytes(min(PIECE, end - at))
                sender.send(piece)
                at += len(piece)
            return False
        sender.send(data)
        at += len(data)
    return True


class Folders:
    """Opens folders below the roots without following links; the last one stays open for the next file in it."""

    def __init__(self, call: StateCall) -> None:
        self._call = call
        self._tops: dict[int, int] = {}
        self._at: tuple[int, bytes] | None = None
        self._fd = -1

    def top(self, root: int) -> int:
        """Return the descriptor of a root. Raises OSError."""
        if root not in self._tops:
            self._tops[root] = os.open(root_path(self._call, root), DIRECTORY)
        return self._tops[root]

    def open_parent(self, root: int, path: bytes) -> tuple[int, bytes]:
        """Return the folder that contains ``path``, open until the next call, and the name in it.

        Raises OSError, and Fault ``path_invalid``.
        """
        parts = path.split(b"/")
        if any(part in (b"", b".", b"..") for part in parts) or b"\0" in path:
            raise Fault("path_invalid", path=ascii(path)[:200], problem="it is not a path below a root")
        *folders, name = parts
        where = (root, b"/".join(folders))
        if self._at != where:
            here = enter(self.top(root), folders)
            self.forget()
            self._fd, self._at = here, where
        return self._fd, name

    def forget(self) -> None:
        """Close the last folder: one on the way to it may have been replaced."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._at = -1, None

    def close(self) -> None:
        """Close all folders."""
        self.forget()
        for fd in self._tops.values():
            os.close(fd)
        self._tops.clear()
