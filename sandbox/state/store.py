"""Contents of files by their SHA-256, once each, in one file of the host.

The file has no name: it goes with the process, however that ends.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sandbox.errors import ErrorCode, OperationError, SandboxError
from sandbox.guest.protocol.chunks import ChunkReader
from sandbox.guest.protocol.records import PART
from sandbox.readers import limit, phrased
from sandbox.text.wording import size

from .table import Key
from .writing import CHUNK, Writing, put, unnamed

log = logging.getLogger(__name__)

# Room of contents that nothing refers to any more is given back when it is this much, and half of the file; and where
# nothing is left that is referred to.
GIVEN_BACK_BYTES = 64 << 20


@dataclass(slots=True)
class _Place:
    offset: int
    length: int
    users: int


class Store:
    """Holds contents as the guest sends them (see ``guest.records``), at most ``limit`` bytes. For many threads; shared by forks.

    Raises SandboxError ``store_full`` past the limit, ``host_disk_full`` where the host has no room.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.RLock()
        self._places: dict[bytes, _Place] = {}
        self._file = unnamed()
        self._end = self._used = self._arriving = 0
        self._users = 1

    @property
    def used_bytes(self) -> int:
        """Bytes of all contents."""
        return self._used

    def share(self) -> Store:
        """The same store for one more environment; each calls ``release``."""
        with self._lock:
            self._users += 1
        return self

    def release(self) -> None:
        """Let go; the last one closes the file."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._places.clear()
                self._used = 0
                self._file.close()

    def add(self, pieces: Iterable[bytes]) -> tuple[bytes, int]:
        """Take a content; its digest, and how many bytes it added (0 where it was there). The caller is a user of it then."""
        with self.writing() as writing:
            for piece in pieces:
                writing.write(piece)
            return writing.finish()

    @contextmanager
    def writing(self) -> Iterator[Writing]:
        """Take a content piece by piece; nothing of it stays unless ``finish`` is called. Nobody waits meanwhile."""
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
                    phrased("Delete checkpoints that are not needed, or raise {limit}.", limit=limit("checkpoint_bytes")),
                )
            self._arriving += count

    def _taken(self, digest: bytes, writing: Writing) -> int:
        with self._lock:
            known = self._places.get(digest)
            if known is not None:
                known.users += 1
                return 0
            most = max(self._used, min(self.limit // 2, self.limit - writing.length))
            if self._end > most or self._is_scarce():  # room that nothing needs is no reason to refuse
                self._compact()
            start = at = self._end
            try:
                for piece in writing.pieces():
                    put(self._file, piece, at)
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
        """Be a further user of each of these."""
        with self._lock:
            for digest in digests:
                self._places[digest].users += 1

    def claimed(self, digests: Mapping[Key, bytes]) -> dict[Key, bytes]:
        """Those that are there; the caller is a user of each of them then."""
        with self._lock:
            there = {key: digest for key, digest in digests.items() if digest in self._places}
            self.keep(there.values())
            return there

    def drop(self, digests: Iterable[bytes]) -> None:
        """Be a user of these no longer; what has none is forgotten, and its room given back in time."""
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
                except SandboxError as error:  # what is not used any more is no reason to refuse anything
                    log.warning("room of old checkpoints is not given back: %s", error)

    def _is_scarce(self) -> bool:
        """Whether the host's disk has less room than what is not used takes."""
        disk = os.fstatvfs(self._file.fileno())
        return disk.f_bavail * disk.f_frsize < self._end - self._used

    def _compact(self) -> None:
        """Move every content down over what is not used; each ends before the next begins, so nothing is lost on the way.

        Also on a full disk: only blocks that the file has already are written.
        """
        end = 0
        for place in sorted(self._places.values(), key=lambda p: p.offset):
            if place.offset != end:
                for at in range(0, place.length, CHUNK):
                    data = os.pread(self._file.fileno(), min(CHUNK, place.length - at), place.offset + at)
                    put(self._file, data, end + at)
                place.offset = end
            end += place.length
        self._cut(end)

    def pieces(self, digest: bytes) -> Iterator[bytes]:
        """The content as it was added. Raises KeyError for one that is not there."""
        with self._lock:
            length = self._places[digest].length
        for at in range(0, length, CHUNK):
            with self._lock:  # it may be moved between two pieces
                place = self._places[digest]
                data = os.pread(self._file.fileno(), min(CHUNK, length - at), place.offset + at)
            yield data

    def read(self, digest: bytes, most: int) -> bytes | int:
        """The bytes of a file, holes filled with zeros; only its size where it is larger than ``most``."""
        return plain(self.pieces(digest), most)


def plain(pieces: Iterable[bytes], most: int) -> bytes | int:
    """The bytes of a file in a content, holes filled with zeros; only its size where that is more than ``most``."""
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
    return OperationError(
        ErrorCode.transfer_incomplete, "A content ended too soon.", "Do it again.", retryable=True
    )


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
