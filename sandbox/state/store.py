"""Store contents of files by their SHA-256, each once, in one file of the host.

The file has no name, so it disappears with the process, however that ends.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from sandbox.errors import ErrorCode, OperationError, SandboxError
from sandbox.guest.protocol.chunks import ChunkReader
from sandbox.guest.protocol.records import PART
from sandbox.readers import limit, phrased
from sandbox.text.wording import size

from .table import Key

log = logging.getLogger(__name__)

CHUNK = 1 << 18
# This much of a content on its way is held in memory: most files are smaller.
HELD_BYTES = 1 << 20


# Unused room is given back when it is this much and half of the file, or when nothing is used any more.
GIVEN_BACK_BYTES = 64 << 20


@dataclass(slots=True)
class _Place:
    offset: int
    length: int
    users: int


class Store:
    """Holds contents as the guest sends them (see ``guest.protocol.records``), at most ``limit`` bytes.

    May be used by many threads, and is shared by forks. Raises SandboxError ``store_full`` past the limit, ``host_disk_full``
    if the host has no room.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.RLock()
        self._places: dict[bytes, _Place] = {}
        self._file = open_unnamed()
        self._end = self._used = self._arriving = 0
        self._users = 1

    @property
    def used_bytes(self) -> int:
        """Bytes of all contents."""
        return self._used

    def share(self) -> Store:
        """Return the same store for one more environment. Each of them calls ``release``."""
        with self._lock:
            self._users += 1
        return self

    def release(self) -> None:
        """Stop using the store; the last user closes the file."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._places.clear()
                self._used = 0
                self._file.close()

    def add(self, pieces: Iterable[bytes]) -> tuple[bytes, int]:
        """Add a content, with the caller as a user. Returns its digest and how many bytes it added, 0 if it was there."""
        with self.writing() as writing:
            for piece in pieces:
                writing.write(piece)
            return writing.finish()

    @contextmanager
    def writing(self) -> Iterator[Writing]:
        """Add a content piece by piece; it is dropped unless ``finish`` is called. Blocks no other thread meanwhile."""
        writing = Writing(self._reserve, self._taken)
        try:
            yield writing
        finally:
            writing.close()
            with self._lock:
                self._arriving -= writing.length

    def _reserve(self, count: int) -> None:
        with self._lock:
            if self._used + self._arriving + count > self.limit:
                raise OperationError(
                    ErrorCode.store_full,
                    f"The checkpoints of this sandbox would take more than {size(self.limit)} on the host.",
                    phrased(
                        "Delete checkpoints that are not needed, or raise {limit}.", limit=limit("checkpoint_bytes")
                    ),
                )
            self._arriving += count

    def _taken(self, digest: bytes, writing: Writing) -> int:
        with self._lock:
            known = self._places.get(digest)
            if known is not None:
                known.users += 1
                return 0
            most = max(self._used, min(self.limit // 2, self.limit - writing.length))
            if self._end > most or self._is_scarce():  # unused room is no reason to refuse
                self._compact()
            start = at = self._end
            try:
                for piece in writing.pieces():
                    write_at(self._file, piece, at)
                    at += len(piece)
            except BaseException:
                self._cut(start)
                raise
            self._places[digest] = _Place(start, writing.length, 1)
            self._end = at
            self._used += writing.length
            return writing.length

    def _cut(self, end: int) -> None:
        self._end = end
        self._file.truncate(end)

    def keep(self, digests: Iterable[bytes]) -> None:
        """Add a user to each of these."""
        with self._lock:
            for digest in digests:
                self._places[digest].users += 1

    def claim(self, digests: Mapping[Key, bytes]) -> dict[Key, bytes]:
        """Return those that are in the store, with the caller as a user of each."""
        with self._lock:
            there = {key: digest for key, digest in digests.items() if digest in self._places}
            self.keep(there.values())
            return there

    def drop(self, digests: Iterable[bytes]) -> None:
        """Remove a user from each of these. A content without users is forgotten, and its room is given back eventually."""
        with self._lock:
            for digest in digests:
                place = self._places.get(digest)
                if place is not None:
                    place.users -= 1
                    if place.users <= 0:
                        del self._places[digest]
                        self._used -= place.length
            unused = self._end - self._used
            much = unused > min(GIVEN_BACK_BYTES, self.limit // 4) and unused > self._end // 2
            if self._users and unused and (much or not self._used or self._is_scarce()):
                try:
                    self._compact()
                except SandboxError as error:  # unused room is no reason to refuse anything
                    log.warning("room of old checkpoints is not given back: %s", error)

    def _is_scarce(self) -> bool:
        """Return whether the host's disk has less room left than unused contents take."""
        disk = os.fstatvfs(self._file.fileno())
        return disk.f_bavail * disk.f_frsize < self._end - self._used

    def _compact(self) -> None:
        """Move every content down over unused room. Each ends before the next begins, so nothing is lost on the way.

        Works on a full disk, too: it only writes blocks that the file already has.
        """
        end = 0
        for place in sorted(self._places.values(), key=lambda p: p.offset):
            if place.offset != end:
                for at in range(0, place.length, CHUNK):
                    data = os.pread(self._file.fileno(), min(CHUNK, place.length - at), place.offset + at)
                    write_at(self._file, data, end + at)
                place.offset = end
            end += place.length
        self._cut(end)

    def pieces(self, digest: bytes) -> Iterator[bytes]:
        """Yield the content as it was added. Raises KeyError for an unknown digest."""
        with self._lock:
            length = self._places[digest].length
        for at in range(0, length, CHUNK):
            with self._lock:  # it may be moved between two pieces
                place = self._places[digest]
                data = os.pread(self._file.fileno(), min(CHUNK, length - at), place.offset + at)
            yield data

    def read(self, digest: bytes, most: int) -> bytes | int:
        """Return the bytes of a file, holes filled with zeros, or only its size if that is more than ``most``."""
        return read_content(self.pieces(digest), most)


class Writing:
    """A content on its way into a store, in a temporary file of its own, so that a slow sender blocks no other thread."""

    def __init__(self, reserve: Callable[[int], None], publish: Callable[[bytes, Writing], int]) -> None:
        self._reserve, self._publish = reserve, publish
        self._hashed = hashlib.sha256()
        self._held = bytearray()
        self._file: IO[bytes] | None = None
        self.length = 0

    def write(self, data: bytes) -> None:
        """Add a piece. Raises SandboxError ``store_full``, ``host_disk_full``."""
        self._reserve(len(data))
        self.length += len(data)
        self._hashed.update(data)
        self._held += data
        if len(self._held) > HELD_BYTES:
            if self._file is None:
                self._file = open_unnamed()
            write_at(self._file, self._held, self.length - len(self._held))
            self._held.clear()

    def pieces(self) -> Iterator[bytes]:
        """Yield all of it."""
        in_file = self.length - len(self._held)
        for at in range(0, in_file, CHUNK):
            if self._file is not None:
                yield os.pread(self._file.fileno(), min(CHUNK, in_file - at), at)
        yield bytes(self._held)

    def finish(self) -> tuple[bytes, int]:
        """Publish the content. Returns its digest and how many bytes it added."""
        digest = self._hashed.digest()
        return digest, self._publish(digest, self)

    def close(self) -> None:
        """Close the temporary file."""
        if self._file is not None:
            self._file.close()


def open_unnamed() -> IO[bytes]:
    """Open an unnamed, unbuffered file of the host. Raises SandboxError ``host_disk_full``."""
    try:
        return tempfile.TemporaryFile(prefix="gamebox-state-", buffering=0)
    except OSError as error:
        raise _no_room(error) from error


def write_at(file: IO[bytes], data: bytes | bytearray, at: int) -> None:
    """Write all of ``data`` at the offset ``at``. Raises SandboxError ``host_disk_full``."""
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


def read_content(pieces: Iterable[bytes], most: int) -> bytes | int:
    """Return the bytes of a file in a content, holes filled with zeros, or only its size if that is more than ``most``."""
    data = bytearray()
    reader = content_reader(iter(pieces))
    for at, length in parts_of(reader):
        if not length:
            return at if at > most else bytes(data) + bytes(at - len(data))
        if at + length > most:
            reader.skip(length)
            continue
        data += bytes(at - len(data)) + reader.read_exactly(length)
    return bytes(data)


def content_reader(pieces: Iterator[bytes]) -> ChunkReader:
    """Return a reader of a content, which raises OperationError ``transfer_incomplete`` if the pieces end too soon."""
    return ChunkReader(pieces, _ended_too_soon)


def _ended_too_soon() -> OperationError:
    return OperationError(ErrorCode.transfer_incomplete, "A content ended too soon.", "Do it again.", retryable=True)


def parts_of(reader: ChunkReader) -> Iterator[tuple[int, int]]:
    """Yield offset and length of each part of a content, and (size, 0) at its end; the caller reads the bytes in between."""
    end = 0
    while True:
        at, length = PART.unpack(reader.read_exactly(PART.size))
        if at < end:
            raise OperationError(ErrorCode.transfer_incomplete, "A content contradicts itself.", "Do it again.")
        yield at, length
        if not length:
            return
        end = at + length
