"""Files that may be compressed with gzip or zstd, read as what they unpack to, piece by piece."""

from __future__ import annotations

import gzip
import sys
import tarfile
import zlib
from types import ModuleType
from typing import BinaryIO, cast

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_DAMAGED = (tarfile.TarError, EOFError, OSError, zlib.error, ValueError, OverflowError, RecursionError, MemoryError)


def unpacked(source: BinaryIO) -> BinaryIO:
    """Return a file of what ``source`` has from its beginning, unpacked if it is compressed.

    A read holds little more than the bytes that it is asked for: windows of zstd are at most 128 MiB, larger ones count as damage.
    Raises ValueError if this Python has no zstd.
    """
    head = source.read(len(_ZSTD))
    source.seek(0)
    if head.startswith(_GZIP):
        return cast("BinaryIO", gzip.GzipFile(fileobj=source))
    if head == _ZSTD:
        if (zstd := _zstd()) is None:
            raise ValueError("this Python was built without zstd")
        return cast("BinaryIO", zstd.ZstdFile(source))
    return source


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
