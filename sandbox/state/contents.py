"""The stream of ``fetch`` on its way into a store: hostile until it is checked, never larger in memory than a frame."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

from sandbox.errors import ErrorCode, OperationError
from sandbox.guest.protocol.records import CHANGED, FETCHED, GONE, GOT, PART, WANTED
from sandbox.pipe.replies import violation

from .store import Store
from .table import Entry, Key

# The frames of one file may say that many parts: a file of 1 GiB with holes between all its blocks has fewer.
MOST_PARTS = 1 << 18
# A guest that sends in drops is given up: it has that long, and a second more for each of so many bytes. A pause of the sandbox is
# a gap, of which only this much counts.
PATIENCE_SECONDS, LEAST_BYTES_PER_SECOND, LONGEST_GAP_SECONDS = 300.0, 64 << 10, 30.0
_Taking = Generator[None, bytes, bytes]


def wanted(entries: Sequence[Entry]) -> bytes:
    """What ``fetch`` is asked for."""
    return b"".join(WANTED.pack(entry.root, len(entry.path)) + entry.path for entry in entries)


class Contents:
    """Takes what ``fetch`` streams for ``entries``. ``digests`` are those of the files that came, ``entries`` what they then were.

    ``gone`` could not be read, ``torn`` changed while they were read. Raises SandboxUnavailableError for nonsense,
    OperationError ``transfer_incomplete`` where they come too slowly.
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

    def take(self, chunk: bytes) -> None:
        """One more piece of the stream."""
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
        """Raises SandboxUnavailableError where something is missing."""
        if self._buffer or not (self._done or not self._asked):
            raise violation("fetch")

    def close(self) -> None:
        """Give up; what was taken of the present file is dropped."""
        self._machine.close()

    def _exactly(self, count: int) -> _Taking:
        while len(self._buffer) < count:
            self._buffer += yield
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def _some(self, most: int) -> _Taking:
        while not self._buffer:
            self._buffer += yield
        data = bytes(self._buffer[:most])
        del self._buffer[:most]
        return data

    def _files(self) -> Generator[None, bytes, None]:
        for number, entry in enumerate(self._asked):
            said, how, size, mtime, ctime, device, inode = FETCHED.unpack((yield from self._exactly(FETCHED.size)))
            if said != number or how not in (GOT, GONE):
                raise violation("fetch")
            if how == GONE:
                self.gone.append(entry.key)
                continue
            yield from self._one(entry.key, size)
            self.entries[entry.key] = entry._replace(size=size, mtime=mtime, ctime=ctime, device=device, inode=inode)
            (changed,) = CHANGED.unpack((yield from self._exactly(CHANGED.size)))
            if changed:
                self.torn.append(entry.key)

    def _one(self, key: Key, size: int) -> Generator[None, bytes, None]:
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
                    data = yield from self._some(length)
                    writing.write(data)
                    length -= len(data)
            digest, added = writing.finish()
        self.digests[key] = digest
        self.added_bytes += added
