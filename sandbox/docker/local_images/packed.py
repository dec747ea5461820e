"""Files that may be compressed with gzip or zstd, read as what they unpack to, piece by piece."""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, BinaryIO, cast

from sandbox.errors import ErrorCode, SandboxError

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
# Packed bytes are read ahead, and some files have a table at their end that unpacks to nothing. More than that is refused.
PIECE_BYTES, SPARE_BYTES, SPARE_SHARE = 1 << 17, 1 << 19, 16
_DAMAGED = (tarfile.TarError, EOFError, OSError, zlib.error, ValueError, OverflowError, RecursionError, MemoryError)


def unpacked(source: BinaryIO) -> BinaryIO:
    """Return a file of what ``source`` has from its beginning, unpacked if it is compressed.

    A read holds little more than the bytes that it is asked for: windows of zstd are at most 128 MiB, larger ones count as damage.
    Raises SandboxError ``unsafe_archive`` if this Python has no zstd.
    """
    head = source.read(len(_ZSTD))
    source.seek(0)
    if head.startswith(_GZIP):
        return cast("BinaryIO", _Unpacked(source, lambda packed: gzip.GzipFile(fileobj=packed)))
    if head == _ZSTD:
        if (zstd := _zstd()) is None:
            raise SandboxError(
                ErrorCode.unsafe_archive,
                "The archive is compressed with zstd, which this Python cannot read.",
                "Decompress it first: unzstd FILE.",
            )
        return cast("BinaryIO", _Unpacked(source, zstd.ZstdFile))
    return source


class EmptyFramesError(ValueError):
    """Much of it unpacks to nothing: each of such frames takes the time of a thousand bytes."""


class _Packed:
    """The packed bytes, as they are read. ``given`` is the number of bytes that those before unpacked to."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._taken = self.given = 0

    def read(self, count: int = -1, /) -> bytes:
        found = self._source.read(count)
        self._taken += len(found)
        if self._taken > self.given + SPARE_BYTES + self.given // SPARE_SHARE:
            raise EmptyFramesError
        return found

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._taken = self._source.seek(offset, whence)
        return self._taken

    def tell(self) -> int:
        return self._source.tell()

    def seekable(self) -> bool:
        return True


class _Unpacked:
    """What the packed bytes unpack to, read in pieces, so that it is known how much came of how much."""

    def __init__(self, source: BinaryIO, unpacker: Callable[[Any], Any]) -> None:
        self._packed = _Packed(source)
        self._file = unpacker(self._packed)
        self._place = 0

    def read(self, count: int = -1, /) -> bytes:
        parts: list[bytes] = []
        while count and (piece := self._file.read(PIECE_BYTES if count < 0 else min(count, PIECE_BYTES))):
            parts.append(piece)
            count -= len(piece) if count > 0 else 0
            self._place += len(piece)
            self._packed.given = max(self._packed.given, self._place)
        return b"".join(parts)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if whence != io.SEEK_SET:
            raise io.UnsupportedOperation("seek")
        if offset < self._place:
            self._place = self._file.seek(0)
        while self._place < offset and self.read(min(offset - self._place, PIECE_BYTES)):
            pass
        return self._place

    def tell(self) -> int:
        return self._place

    def seekable(self) -> bool:
        return True


def damaged() -> tuple[type[Exception], ...]:
    """Return the exceptions that reading a damaged archive raises."""
    zstd = _zstd()
    return _DAMAGED if zstd is None else (*_DAMAGED, zstd.ZstdError)


def _zstd() -> ModuleType | None:
    """Import zstd, which the standard library has from Python 3.14 on."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        return None
    return zstd
