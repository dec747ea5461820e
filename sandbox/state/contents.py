"""Take the stream of ``fetch`` into a store. It is hostile until it is checked, and never larger in memory than a frame."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

from sandbox.errors import ErrorCode, OperationError
from sandbox.guest.protocol.records import CHANGED, FETCHED, GONE, GOT, PART, WANTED
from sandbox.messages.faults import violation

from .store import Store
from .table import Entry, Key

# One file may have this many parts: a file of 1 GiB with holes between all its blocks has fewer.
MOST_PARTS = 1 << 18
# A guest that sends too slowly is given up: it has this time, and a second more for each LEAST_BYTES_PER_SECOND. A pause of the
# sandbox is a gap, of which at most LONGEST_GAP_SECONDS count.
PATIENCE_SECONDS, LEAST_BYTES_PER_SECOND, LONGEST_GAP_SECONDS = 300.0, 64 << 10, 30.0
_Taking = Generator[None, bytes | memoryview, bytes]


def pack_wanted(entries: Sequence[Entry]) -> bytes:
    """Return the body of a ``fetch`` request for these entries."""
    return b"".join(WANTED.pack(entry.root, len(entry.path)) + entry.path for entry in entries)


class Contents:
    """Takes what ``fetch`` streams for the files ``asked``.

    ``digests`` are those of the files that came, ``entries`` their state when they were read. Files in ``gone`` could not be read,
    those in ``torn`` changed while they were read. Raises SandboxUnavailableError for a stream that breaks the protocol,
    OperationError ``transfer_incomplete`` for one that is too slow.
    """

    def __init__(self, store: Store, asked: Sequence[Entry]) -> None:
        self._store, self._asked = store, asked
        self._buffer = bytearray()
        self.digests: dict[Key, bytes] = {}
        self.entries: dict[Key, Entry] = {}
        self.gone: list[Key] = []
        self.torn: list[Key] = []
        self.added_bytes = 0
        self._done = False
        self._last = time.monotonic()
        self._spent, self._bytes = 0.0, 0
        self._machine = self._files()
        next(self._machine, None)

    def take(self, chunk: bytes | memoryview) -> None:
        """Take the next piece of the stream."""
        if self._done:
            raise violation("fetch")
        self._pace(len(chunk))
        try:
            self._machine.send(chunk)
        except StopIteration:
            self._done = True

    def _pace(self, count: int) -> None:
        now = time.monotonic()
        self._spent += min(now - self._last, LONGEST_GAP_SECONDS)
        self._last = now
        self._bytes += count
        if self._spent > PATIENCE_SECONDS + self._bytes / LEAST_BYTES_PER_SECOND:
            raise OperationError(
                ErrorCode.transfer_incomplete,
                f"The sandbox sent {self._bytes} bytes of its files in {self._spent:.0f} s, and was given up.",
                "Do it again when less runs in it.",
                retryable=True,
            )

    def finish(self) -> None:
        """Raise SandboxUnavailableError if something is missing."""
        if self._buffer or not (self._done or not self._asked):
            raise violation("fetch")

    def close(self) -> None:
        """Give up, dropping what was taken of the present file."""
        self._machine.close()

    def _exactly(self, count: int) -> _Taking:
        while len(self._buffer) < count:
            self._buffer += yield
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def _at_most(self, most: int) -> _Taking:
        while not self._buffer:
            self._buffer += yield
        data = bytes(self._buffer[:most])
        del self._buffer[:most]
        return data

    def _files(self) -> Generator[None, bytes | memoryview, None]:
        for number, entry in enumerate(self._asked):
            answered, how, size, mtime, ctime, device, inode = FETCHED.unpack((yield from self._exactly(FETCHED.size)))
            if answered != number or how not in (GOT, GONE):
                raise violation("fetch")
            if how == GONE:
                self.gone.append(entry.key)
                continue
            yield from self._take_file(entry.key, size)
            self.entries[entry.key] = entry._replace(size=size, mtime=mtime, ctime=ctime, device=device, inode=inode)
            (changed,) = CHANGED.unpack((yield from self._exactly(CHANGED.size)))
            if changed:
                self.torn.append(entry.key)

    def _take_file(self, key: Key, size: int) -> Generator[None, bytes | memoryview, None]:
        with self._store.writing() as writing:
            end = parts = 0
            while True:
                head = yield from self._exactly(PART.size)
                at, length = PART.unpack(head)
                parts += 1
                if at < end or at + length > size or parts > MOST_PARTS or (not length and at != size):
                    raise violation("fetch")
                writing.write(head)
                if not length:
                    break
                end = at + length
                while length:
                    data = yield from self._at_most(length)
                    writing.write(data)
                    length -= len(data)
            digest, added = writing.finish()
        self.digests[key] = digest
        self.added_bytes += added
