"""Reading an iterator of chunks as if it were a file."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class ChunkReader:
    """Read from chunks of any length. ``premature_end`` makes the exception for bytes that are required and missing."""

    def __init__(self, chunks: Iterator[bytes], premature_end: Callable[[], Exception] = EOFError) -> None:
        self._chunks = chunks
        self._premature_end = premature_end
        self._rest = memoryview(b"")

    def read(self, size: int = -1, /) -> bytes:
        """Return ``size`` bytes, or all of them for -1; fewer only at the end."""
        missing = sys.maxsize if size < 0 else size
        pieces: list[bytes] = []
        while missing and (piece := self._next(missing)):
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def read_some(self, limit: int) -> bytes:
        """Return between 1 and ``limit`` bytes. Raises ``premature_end`` if there are none."""
        data = self._next(limit)
        if not data:
            raise self._premature_end()
        return data

    def read_exactly(self, size: int) -> bytes:
        """Return ``size`` bytes. Raises ``premature_end`` if there are fewer."""
        data = self.read(size)
        if len(data) < size:
            raise self._premature_end()
        return data

    def skip(self, size: int) -> None:
        """Pass over ``size`` bytes. Raises ``premature_end`` if there are fewer."""
        while size:
            size -= len(self.read_some(size))

    def _next(self, limit: int) -> bytes:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return b""
            self._rest = memoryview(chunk)
        data, self._rest = bytes(self._rest[:limit]), self._rest[limit:]
        return data
