"""A content on its way into a store, and files of the host without names."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import IO

from sandbox.errors import ErrorCode, OperationError, SandboxError

CHUNK = 1 << 18
# Of a content on its way this much is kept in memory: most files are smaller.
HELD_BYTES = 1 << 20


class Writing:
    """A content on its way into a store: in a temporary of its own, so that nobody waits for whoever sends it."""

    def __init__(self, reserve: Callable[[int], None], publish: Callable[[bytes, Writing], int]) -> None:
        self._reserve, self._publish = reserve, publish
        self._hashed = hashlib.sha256()
        self._held = bytearray()
        self._file: IO[bytes] | None = None
        self.length = 0

    def write(self, data: bytes) -> None:
        """One more piece. Raises SandboxError ``store_full``, ``host_disk_full``."""
        self._reserve(len(data))
        self.length += len(data)
        self._hashed.update(data)
        self._held += data
        if len(self._held) > HELD_BYTES:
            if self._file is None:
                self._file = unnamed()
            put(self._file, self._held, self.length - len(self._held))
            self._held.clear()

    def pieces(self) -> Iterator[bytes]:
        """All of it."""
        in_file = self.length - len(self._held)
        for at in range(0, in_file, CHUNK):
            if self._file is not None:
                yield os.pread(self._file.fileno(), min(CHUNK, in_file - at), at)
        yield bytes(self._held)

    def finish(self) -> tuple[bytes, int]:
        """The digest, and how many bytes it added."""
        digest = self._hashed.digest()
        return digest, self._publish(digest, self)

    def close(self) -> None:
        """Forget the temporary."""
        if self._file is not None:
            self._file.close()


def unnamed() -> IO[bytes]:
    """A file of the host without a name, unbuffered. Raises SandboxError ``host_disk_full``."""
    try:
        return tempfile.TemporaryFile(prefix="gamebox-state-", buffering=0)
    except OSError as error:
        raise _no_room(error) from error


def put(file: IO[bytes], data: bytes | bytearray, at: int) -> None:
    """Write all of it at that place. Raises SandboxError ``host_disk_full``."""
    try:
        with memoryview(data) as view:
            done = 0
            while done < len(view):
                done += os.pwrite(file.fileno(), view[done:], at + done)
    except OSError as error:
        raise _no_room(error) from error


def _no_room(error: OSError) -> SandboxError:
    folder = tempfile.gettempdir() if tempfile.tempdir else os.environ.get("TMPDIR") or "the temporary folder"
    return OperationError(
        ErrorCode.host_disk_full,
        f"The host could not store the files of the sandbox: {error.strerror}.",
        f"Free space in {folder}: delete_checkpoint(id) gives back what a checkpoint takes there; or set TMPDIR to another folder.",
    )
