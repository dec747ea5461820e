"""Contents of files by their SHA-256, once each, in one file of the host.

The file has no name: it goes with the process, however that ends.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sandbox.errors import ErrorCode, OperationError, SandboxError
from sandbox.guest.records import PART
from sandbox.wording import size

from .table import Key

CHUNK = 1 << 18
# Room of contents that nothing refers to any more is given back when it is this much, and half of the file; and where
# nothing is left that is referred to.
GIVEN_BACK_BYTES = 64 << 20


@dataclass(slots=True)
class _Place:
    offset: int
    length: int
    users: int


class Writing:
    """A content on its way into a store."""

    def __init__(self, write: Callable[[bytes], None], finish: Callable[[bytes], int]) -> None:
        self._write, self._finish = write, finish
        self._hashed = hashlib.sha256()
        self.finished = False

    def write(self, data: bytes) -> None:
        """One more piece."""
        self._hashed.update(data)
        self._write(data)

    def finish(self) -> tuple[bytes, int]:
        """The digest, and how many bytes it added."""
        self.finished = True
        digest = self._hashed.digest()
        return digest, self._finish(digest)


class Store:
    """Holds contents as the guest sends them (see ``guest.records``), at most ``limit`` bytes. For many threads; shared by forks.

    Raises SandboxError ``store_full`` past the limit, ``host_disk_full`` where the host has no room.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.RLock()
        self._places: dict[bytes, _Place] = {}
        self._file = tempfile.TemporaryFile(prefix="gamebox-state-", buffering=0)  # noqa: SIM115 - closed by release
        self._end = self._used = 0
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
        """Take a content piece by piece; nothing of it stays unless ``finish`` is called. Others wait meanwhile."""
        with self._lock:
            if self._end > max(self._used, self.limit // 2):  # nobody is refused for room that nothing needs
                self._compact()
            start = self._end
            writing = Writing(self._write, lambda digest: self._finished(digest, start))
            try:
                yield writing
            finally:
                if not writing.finished:
                    self._cut(start)

    def _finished(self, digest: bytes, start: int) -> int:
        known = self._places.get(digest)
        if known is not None:
            self._cut(start)
            known.users += 1
            return 0
        self._places[digest] = _Place(start, self._end - start, 1)
        self._used += self._end - start
        return self._end - start

    def _write(self, data: bytes) -> None:
        if self._end + len(data) > self.limit:
            raise OperationError(
                ErrorCode.store_full,
                f"The checkpoints of this sandbox would take more than {size(self.limit)} on the host.",
                "Delete checkpoints that are not needed, or raise Limits(checkpoint_bytes=...).",
            )
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(self._file.fileno(), view, self._end)
                view, self._end = view[written:], self._end + written
        except OSError as error:
            raise _no_room(error) from error

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
            if self._users and unused and (much or not self._used):
                self._compact()

    def _compact(self) -> None:
        """Move every content down over what is not used; each ends before the next begins, so nothing is lost on the way."""
        end = 0
        for place in sorted(self._places.values(), key=lambda p: p.offset):
            if place.offset != end:
                for at in range(0, place.length, CHUNK):
                    data = os.pread(self._file.fileno(), min(CHUNK, place.length - at), place.offset + at)
                    os.pwrite(self._file.fileno(), data, end + at)
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
    reader = Reader(iter(pieces))
    for at, length in reader.parts():
        if not length:
            return at if at > most else bytes(data) + bytes(at - len(data))
        if at + length > most:
            reader.skip(length)
            continue
        data += bytes(at - len(data)) + reader.exactly(length)
    return bytes(data)


class Reader:
    """Reads a content from pieces. Raises OperationError ``transfer_incomplete`` where they end too soon."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def some(self, most: int) -> bytes:
        """At least one byte."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                raise OperationError(
                    ErrorCode.transfer_incomplete, "A content ended too soon.", "Do it again.", retryable=True
                )
            self._rest = memoryview(piece)
        data, self._rest = bytes(self._rest[:most]), self._rest[most:]
        return data

    def exactly(self, count: int) -> bytes:
        """That many bytes."""
        data = self.some(count)
        while len(data) < count:
            data += self.some(count - len(data))
        return data

    def skip(self, count: int) -> None:
        """Pass over that many bytes."""
        while count:
            count -= len(self.some(count))

    def parts(self) -> Iterator[tuple[int, int]]:
        """The heads of the parts, the last one (size, 0); the caller reads what is between them."""
        end = 0
        while True:
            at, length = PART.unpack(self.exactly(PART.size))
            if at < end:
                raise OperationError(ErrorCode.transfer_incomplete, "A content contradicts itself.", "Do it again.")
            yield at, length
            if not length:
                return
            end = at + length


def _no_room(error: OSError) -> SandboxError:
    return OperationError(
        ErrorCode.host_disk_full,
        f"The host could not store the files of the sandbox: {error.strerror}.",
        "Free space in its temporary folder, or set TMPDIR to another one.",
    )
